"""Does an import that is killed lose or double anything?

`dask-rl data import --workers 2` is killed (SIGKILL) at seeded random moments: the process group of the driver, or
a worker alone. After the former the same import is run again; after the latter it must come to its end by itself. The
content hash must be that of an undisturbed import in one process, each time, and a deep verification must pass.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import psutil

from dask_rl.storage.dataset import OfflineDataset

NUM_EPISODES, MAX_STEPS, SHARD_ROWS = 240, 200, 512
WAIT_SECONDS = 300.0
LOOK_SECONDS = 0.002
LATEST_SECONDS = 0.05
"""After so many receipts, and up to so much later."""


@dataclass(frozen=True)
class Kill:
    """One kill of the schedule."""

    kind: str
    """group or worker."""
    num_receipts: int
    """When so many shards are finished; −1: at once."""
    seconds: float
    """And so much later."""


def schedule(num_kills: int, num_shards: int, seed: int) -> list[Kill]:
    """Return kills at any moment of the import, its beginning and its end too; every fifth is of a worker alone."""
    rng = np.random.default_rng(seed)
    return [
        Kill(
            "worker" if number % 5 == 4 else "group",
            int(rng.integers(0 if number % 5 == 4 else -1, num_shards - 4 if number % 5 == 4 else num_shards + 1)),
            float(rng.uniform(0, LATEST_SECONDS)),
        )
        for number in range(num_kills)
    ]


def write_source(path: Path) -> None:
    """Write random episodes as d3rlpy does."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, MAX_STEPS, NUM_EPISODES)
    ends, total = np.cumsum(lengths) - 1, int(lengths.sum())
    with h5py.File(path, "w") as file:
        file["observations"] = rng.standard_normal((total, 17), np.float32)
        file["actions"] = rng.uniform(-1, 1, (total, 6)).astype(np.float32)
        file["rewards"] = rng.standard_normal(total, np.float32)
        file["terminals"] = np.isin(np.arange(total), ends[::2]).astype(np.float32)
        file["episode_terminals"] = np.isin(np.arange(total), ends).astype(np.float32)
        file["discrete_action"] = False
        file["version"] = "1.0"


def command(source: Path, dest: Path, workers: int) -> list[str]:
    """Return the command of the import."""
    options = ["--shard-rows", str(SHARD_ROWS), "--workers", str(workers), "--json"]
    return [sys.executable, "-m", "dask_rl", "data", "import", str(source), str(dest), *options]


def import_to_end(source: Path, dest: Path, workers: int) -> str:
    """Import, and return the content hash."""
    done = subprocess.run(
        command(source, dest, workers), capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    if done.returncode:
        raise SystemExit(f"the import failed:\n{done.stderr}")
    return str(json.loads(done.stdout)["content_hash"])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition.

    Raises:
        SystemExit: it did not come about in time.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {WAIT_SECONDS:g} s for {what}")
        time.sleep(LOOK_SECONDS)


def disturbed_import(source: Path, dest: Path, kill: Kill) -> str:
    """Import, with a kill on the way, and return the content hash."""
    partial = dest.with_name(f".{dest.name}.partial")
    with subprocess.Popen(
        command(source, dest, 2), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        wait_until(
            lambda: (
                process.poll() is not None
                or (partial.exists() and len(list(partial.glob("shards-*/receipts/*"))) >= kill.num_receipts)
            ),
            f"{kill.num_receipts} receipts",
        )
        time.sleep(kill.seconds)
        if kill.kind == "worker":
            _kill_worker(process.pid, kill)
            output, _ = process.communicate(timeout=WAIT_SECONDS)
            if process.returncode:
                raise SystemExit(f"the import did not outlive {kill}")
            return str(json.loads(output)["content_hash"])
        os.killpg(process.pid, signal.SIGKILL)
    if dest.exists():  # it was committed: a second import of the same is refused
        with OfflineDataset.open(dest) as dataset:
            return dataset.content_hash
    return import_to_end(source, dest, 2)


def _kill_worker(driver: int, kill: Kill) -> None:
    workers = [
        child
        for child in psutil.Process(driver).children(recursive=True)
        if "spawn_main" in " ".join(child.cmdline()) and os.getpgid(child.pid) == child.pid
    ]
    if workers:  # none are left where the import has just come to its end
        workers[kill.num_receipts % len(workers)].kill()


def main() -> int:
    """Disturb imports; 0 if every one gave the dataset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, dest = folder / "source.h5", folder / "killed.zarr"
        write_source(source)
        wanted = import_to_end(source, folder / "whole.zarr", 0)
        with OfflineDataset.open(folder / "whole.zarr") as dataset:
            num_shards = -(-dataset.num_rows // dataset.shard_rows)
        equal = 0
        for kill in schedule(arguments.kills, num_shards, arguments.seed):
            found = disturbed_import(source, dest, kill)
            with OfflineDataset.open(dest) as dataset:
                dataset.verify(deep=True)
                same = found == dataset.content_hash == wanted
            equal += same
            print(f"{kill}: {'equal' if same else 'ANOTHER DATASET'}", flush=True)
            shutil.rmtree(dest)
        left = sorted(entry.name for entry in folder.iterdir())
    print(f"{equal} of {arguments.kills} imports in {num_shards} shards, killed and run again: equal")
    print(f"left behind: {left}")
    return int(equal != arguments.kills or len(left) != 2)


if __name__ == "__main__":
    sys.exit(main())
