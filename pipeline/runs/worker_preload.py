"""Loaded by every worker process that we start (Dask's `preload`).

A terminal's Ctrl-C, `timeout` and batch systems signal the whole process group of the driver. The driver
answers by finishing the step and saving a checkpoint, for which it needs its learners alive; so workers leave
its group. They still end with it: Dask gives each a pipe from its parent and ends the process when it breaks.
"""

import importlib
import os
from typing import Any


def dask_setup(worker: Any) -> None:
    """Move the worker's process into a session of its own, and import what takes long: spares are warm then."""
    if os.getpgid(0) != os.getpid():
        os.setsid()
    importlib.import_module("dask_rl.learners.actor")
