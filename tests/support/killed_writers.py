"""Writes a dataset in child processes that die, one at each call that changes the disk; argv: directory, how, stride.

After each death the dataset is there complete or not at all, and the next run completes it. Prints the number of
deaths. A program of its own: it forks, and must have no threads when it does.

how: local, remote
     after-others           where another writer left shards of the same sizes with other rows, and died
     overwrite              a dataset that is there, which is there whole until the new one is
     overwrite-by-renames   the same where the file system cannot exchange the two in one step
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from faulty_stores import LocalStore
from gymnasium import spaces
from random_episodes import generate

from dask_rl.storage import DatasetError, DatasetNotFoundError, DatasetWriter, OfflineDataset
from dask_rl.storage.building import build

SETTINGS = {
    "observation_space": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "action_space": spaces.Box(-2, 2, (1,), np.float32),
    "shard_rows": 64,
}
DISK = [(os, name) for name in ("replace", "rename", "fdatasync", "fsync", "writev", "mkdir", "unlink", "rmdir")]
STORE = [(LocalStore, name) for name in ("pipe_file", "rm_file")]
REFUSED = 1


def episodes(others: bool = False) -> list[Any]:
    """Return what is written, or the same with other observations."""
    return [replace(it, observations=-it.observations) if others else it for it in generate(8)]


def in_child(write: Callable[[], Any]) -> int:
    """Return the status of a child that does this."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        write()
    except DatasetError:
        os._exit(REFUSED)
    os._exit(0)


def write(path: str, kill_at: int = -1, how: str = "local", *, others: bool = False, overwrite: bool = False) -> int:
    """Write in a child that dies before (even) or after (odd) a call that changes the disk; return its status."""
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

    def arm() -> None:
        for owner, name in STORE if how == "remote" else [*DISK, (build, "exchange")]:
            setattr(owner, name, deadly(getattr(owner, name)))

    def run() -> None:
        if how == "overwrite-by-renames":
            build.exchange = lambda path, other: False
        if not overwrite:
            arm()
        with DatasetWriter(path, **SETTINGS, overwrite=overwrite) as writer:
            writer.add_episodes(episodes(others))
            if overwrite:  # all that is before is as for a new one
                arm()

    return in_child(run)


def leave_shards_of_others(path: str) -> None:
    """Leave what a writer of other rows leaves that dies when all its shards are finished."""

    def run() -> None:
        build.BuildDirectory.commit = lambda it, manifest: os._exit(0)
        with DatasetWriter(path, **SETTINGS) as writer:
            writer.add_episodes(episodes(others=True))

    assert in_child(run) == 0


def hash_of(path: str) -> str:
    """Return the content hash of a dataset, every byte of it checked."""
    dataset = OfflineDataset.open(path)
    dataset.verify(deep=True)
    return dataset.content_hash


def write_new(path: str, kill_at: int, how: str, wanted: str) -> bool:
    """Write where nothing is, or what others left; return whether the writer died."""
    if how == "after-others":
        leave_shards_of_others(path)
    killed = write(path, kill_at, how) != 0
    try:
        OfflineDataset.open(path)
    except DatasetError:
        assert killed
        if how == "after-others" and kill_at % 4 > 1:  # those of the others are to be right too
            assert write(path, others=True) == 0, f"no dataset after a death at {kill_at}"
            assert hash_of(path) != wanted
            return True
        assert write(path, -1, how) == 0, f"no dataset after a death at {kill_at}"
    assert hash_of(path) == wanted, f"another dataset after a death at {kill_at}"
    return killed


def overwrite(path: str, kill_at: int, how: str, wanted: str) -> bool:
    """Write over a dataset; return whether the writer died."""
    assert write(path, others=True) == 0
    old = hash_of(path)
    killed = write(path, kill_at, how, overwrite=True) != 0
    try:
        found = hash_of(path)
    except DatasetNotFoundError:
        assert how == "overwrite-by-renames", f"no dataset after a death at {kill_at}"
        assert write(path) != 0, "the next writer brings the old one back, and may not replace it"
        found = hash_of(path)
    assert found in (old, wanted), f"another dataset after a death at {kill_at}"
    assert found == wanted or killed
    moved = kill_at % 4 > 1
    if moved:
        os.rename(path, f"{path}.away")  # what is hidden does not come back in its place, or as a whole
    if write(path, overwrite=not moved) != 0:
        assert moved
        assert how == "overwrite-by-renames"
        assert hash_of(path) == old, f"half a dataset after a death at {kill_at}"
        assert write(path, overwrite=True) == 0, f"no dataset after a death at {kill_at}"
    assert hash_of(path) == wanted, f"another dataset after a death at {kill_at}"
    assert not Path(path).with_name(f".{Path(path).name}.partial").exists()
    return killed


def main(directory: str, how: str, stride: int) -> None:
    """Kill at every `stride`-th moment."""
    scheme = "local-store://" if how == "remote" else ""
    whole = f"{scheme}{Path(directory, 'whole.zarr')}"
    assert write(whole, -1, how) == 0
    wanted = hash_of(whole)
    deaths = 0
    for kill_at in itertools.count(0, stride):
        path = f"{scheme}{Path(directory, f'data{kill_at}.zarr')}"
        if not (overwrite if how.startswith("overwrite") else write_new)(path, kill_at, how, wanted):
            break
        deaths += 1
    print(deaths)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
