"""A preload of Dask workers that ends each of them while it starts."""

import os
import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
