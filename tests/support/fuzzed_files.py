"""Imports and opens files that were damaged at random; argv: what, sample data, a directory, seed, seconds, cases.

Prints a line of JSON: how many cases there were, and how they ended. A failing case is named by its seed and stays on
the disk. A program of its own: a library that crashes on such a file must not take the tests with it.
"""

import json
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.storage import OfflineDataset
from dask_rl.storage.errors import DaskRLError
from dask_rl.storage.formats import import_dataset

CASE_SECONDS = 60
MEMORY_BYTES = 12 << 30
MAX_BYTES = 24 << 20
SOURCES = (
    "rllib/cartpole/small.json",
    "rllib/pendulum/small.json",
    "rllib/cartpole/cartpole-v1_large",
    "d3rlpy/pendulum_v1.1.0.h5",
    "minari/D4RL/door/human-v2",
    "zarr_v2/pusht_cchi_v7_replay.zarr",
)
ODD_NUMBERS = (b"NaN", b"1e999", b"-1", b"null", b"[]", b"99999999999999999999", b'"x"', b"{}")


class Hang(BaseException):
    """A case took too long."""


def flip(content: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def truncate(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


def splice(content: bytearray, rng: random.Random) -> None:
    size = rng.choice([1, 8, 64, 4096])
    start, to = rng.randrange(len(content)), rng.randrange(len(content))
    content[to : to + rng.choice([0, size])] = content[start : start + size]


def blank(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    size = min(rng.choice([1, 4, 8, 512]), len(content) - start)
    content[start : start + size] = rng.choice([b"\0", b"\xff"]) * size


def odd_number(content: bytearray, rng: random.Random) -> None:
    numbers = list(re.finditer(rb"-?\d+(?:\.\d+)?", content[:100_000]))
    if numbers:
        found = rng.choice(numbers)
        content[found.start() : found.end()] = rng.choice(ODD_NUMBERS)


def head(content: bytearray, rng: random.Random) -> None:
    """Near the beginning, where formats say what they hold."""
    for _ in range(rng.choice([1, 4])):
        content[rng.randrange(min(len(content), 2048))] = rng.randrange(256)


MUTATIONS = (flip, truncate, splice, blank, odd_number, head)


def mutate(root: Path, rng: random.Random) -> str:
    """Damage one file; return what was done."""
    files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    path = rng.choice(files)
    if root.is_dir() and rng.random() < 0.05:
        path.unlink()
        return f"no {path.name}"
    content = bytearray(path.read_bytes())
    mutation = rng.choice(MUTATIONS)
    if content:
        mutation(content, rng)
    path.write_bytes(content)
    return f"{mutation.__name__} in {path.name}"


def copy(source: Path, target: Path, rng: random.Random) -> None:
    """Copy a source, a few parts only where it has many."""
    if source.is_file():
        shutil.copy(source, target)
        return
    shutil.copytree(source, target)
    parts = sorted(target.glob("*.parquet"))
    for path in parts[3:]:
        path.unlink()


def check_import(source: Path, place: Path) -> str:
    """Import; every end but a sound dataset or a clear refusal that leaves nothing is a fault."""
    return check_written(lambda: import_dataset(source, place / "out.zarr"), place, source)


def check_written(write: Callable[[], Any], place: Path, source: Path | None) -> str:
    """Have `place/out.zarr` written out of `source`, if that is a file there; see `check_import`."""
    try:
        write()
    except DaskRLError as error:
        _check_line(str(error))
        left = [path.name for path in place.iterdir() if path != source]
        assert not left, f"what is left: {left}"
        return "refused"
    OfflineDataset.open(place / "out.zarr").verify(deep=True)
    return "imported"


def check_open(source: Path, wanted: dict[str, np.ndarray]) -> str:
    """Open and read; every end but the rows as they were written or a clear refusal is a fault."""
    try:
        with OfflineDataset.open(source) as dataset:
            rows = {field: dataset.read(field, 0, dataset.num_rows) for field in dataset.arrays}
            ends = dataset.episode_ends
    except DaskRLError as error:
        _check_line(str(error))
        return "refused"
    for field, column in wanted.items():
        found = ends if field == "ends" else rows[field]
        assert np.array_equal(found, column), f"other values of {field}"
    return "read"


def limit_resources() -> None:
    """Bound the memory, and have alarms end a case."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _hang)


def run(what: str, sample: Path, place: Path, seed: int, seconds: float, cases: int) -> None:
    """Run cases until the time is over, or so many."""
    limit_resources()
    sources = [sample / name for name in SOURCES if (sample / name).exists()]
    sources = [source for source in sources if _size(source) <= MAX_BYTES]
    wanted: dict[str, Any] = {}
    if what == "open":
        import_dataset(sample / SOURCES[1], place / "sound.zarr")
        with OfflineDataset.open(place / "sound.zarr") as dataset:
            wanted = {field: dataset.read(field, 0, dataset.num_rows) for field in dataset.arrays}
            wanted["ends"] = dataset.episode_ends
        sources = [place / "sound.zarr"]
    ends: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(cases):
        if time.monotonic() - began > seconds:
            break
        rng = random.Random(f"{what} {seed} {number}")
        source, case = sources[number % len(sources)], place / "case"
        case.mkdir()
        copy(source, case / source.name, rng)
        done = mutate(case / source.name, rng)
        (place / "now").write_text(f"{what}, seed {seed}, case {number}: {done} of {source.name}")
        check: Callable[[], str] = (
            (lambda at: lambda: check_open(at, wanted))(case / source.name)
            if what == "open"
            else (lambda at, here: lambda: check_import(at, here))(case / source.name, case)
        )
        signal.alarm(CASE_SECONDS)
        try:
            ends[check()] += 1
        finally:
            signal.alarm(0)
        shutil.rmtree(case)
    print(json.dumps(ends))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def _check_line(message: str) -> None:
    assert "\n" not in message, "a message of several lines"


def _hang(*args: Any) -> None:
    raise Hang(f"more than {CASE_SECONDS} s")


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6]))
