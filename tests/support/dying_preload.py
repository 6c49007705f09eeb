"""A preload of Dask workers that sends each of them, while it starts, the signal that TEST_SIGNAL names."""

import os
import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    os.kill(os.getpid(), signal.Signals[os.environ["TEST_SIGNAL"]])
