"""Writes a dataset in child processes that die, one at each call that changes the disk; argv: directory, how, stride.

After each death the dataset is there complete or not at all, and the next run completes it. Prints the number of
deaths. A program of its own: it forks, and must have no threads when it does.
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from faulty_stores import LocalStore
from gymnasium import spaces
from random_episodes import generate

from dask_rl.storage import DatasetError, DatasetWriter, OfflineDataset

SETTINGS = {
    "observation_space": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "action_space": spaces.Box(-2, 2, (1,), np.float32),
    "shard_rows": 64,
}
CALLS = {
    "local": [(os, name) for name in ("replace", "rename", "fdatasync", "fsync", "writev", "mkdir", "unlink", "rmdir")],
    "remote": [(LocalStore, name) for name in ("pipe_file", "rm_file")],
}


def write(path: str, kill_at: int, how: str) -> int:
    """Write in a child that dies before (even) or after (odd) a call that changes the disk; return its status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count = itertools.count()

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            number = next(count)
            if 2 * number == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return function(*args, **kwargs)
            finally:
                if 2 * number + 1 == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    for owner, name in CALLS[how]:
        setattr(owner, name, deadly(getattr(owner, name)))
    with DatasetWriter(path, **SETTINGS) as writer:
        writer.add_episodes(generate(8))
    os._exit(0)


def main(directory: str, how: str, stride: int) -> None:
    """Kill at every `stride`-th moment."""
    scheme = "local-store://" if how == "remote" else ""
    whole = Path(directory, "whole.zarr")
    assert write(f"{scheme}{whole}", -1, how) == 0
    wanted = OfflineDataset.open(f"{scheme}{whole}").content_hash
    deaths = 0
    for kill_at in itertools.count(0, stride):
        path = Path(directory, f"data{kill_at}.zarr")
        killed = write(f"{scheme}{path}", kill_at, how) != 0
        try:
            complete = OfflineDataset.open(f"{scheme}{path}").content_hash == wanted
            assert complete, f"half a dataset after a death at {kill_at}"
        except DatasetError:
            assert killed
            status = write(f"{scheme}{path}", -1, how)
            assert status == 0, f"no dataset after a death at {kill_at}"
        dataset = OfflineDataset.open(f"{scheme}{path}")
        dataset.verify(deep=True)
        assert dataset.content_hash == wanted, f"another dataset after a death at {kill_at}"
        if not killed:
            break
        deaths += 1
    print(deaths)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
