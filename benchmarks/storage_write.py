"""How fast is a dataset written? Our import of arrays in memory against zarr-python's own writer.

Ours checks every value, adds checksums, takes the sha256 of every file, waits for the disk and commits atomically.
zarr-python is given the finished columns, in the same shards and chunks, with checksums; it waits for nothing.
Both write to a new place each time, and what the one before wrote is on the disk by then.
The same as episodes, one by one, is shown beside it. Gate: arrays at least as fast as zarr-python.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr
from harness import Gate, Report, interleaved, parse_repeats
from problem import ACTION_SPACE, OBSERVATION_SPACE, random_episodes
from zarr.codecs import BytesCodec, Crc32cCodec

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.formats.arrays import import_arrays
from dask_rl.storage.writer import DatasetWriter

NUM_STEPS = 4_000_000
SPACES = {"observation_space": OBSERVATION_SPACE, "action_space": ACTION_SPACE}
FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")

Columns = dict[str, npt.NDArray[np.generic]]
Shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]


def as_arrays(episodes: list[Episode]) -> Columns:
    """Return the same episodes as arrays, with the final observations among the observations."""
    return {field: np.concatenate([getattr(episode, field) for episode in episodes]) for field in FIELDS}


def write_arrays(path: Path, arrays: Columns) -> None:
    """Import arrays."""
    import_arrays(path, **arrays, **SPACES)


def write_episodes(path: Path, episodes: list[Episode]) -> None:
    """Write episodes one by one."""
    with DatasetWriter(path, **SPACES) as writer:
        writer.add_episodes(episodes)


def write_with_zarr(path: Path, columns: Columns, shapes: Shapes) -> None:
    """Write finished columns with zarr-python."""
    group = zarr.open_group(path, mode="w")
    for field, column in columns.items():
        shards, chunks = shapes[field]
        array = group.create_array(
            field,
            shape=column.shape,
            dtype=column.dtype,
            shards=shards,
            chunks=chunks,
            serializer=BytesCodec(endian="little" if column.itemsize > 1 else None),
            compressors=[Crc32cCodec()],
            fill_value=np.nan if column.dtype.kind == "f" else None,
            config={"write_empty_chunks": True},
        )
        array[...] = column


def read_back(path: Path) -> tuple[Columns, Shapes]:
    """Return what a dataset holds, and its shards and chunks."""
    with OfflineDataset.open(path) as dataset:
        columns = {field: dataset.read(field, 0, dataset.num_rows) for field in dataset.arrays}
        stored = {field: zarr.open_array(dataset.path, path=f"data/{field}", mode="r") for field in columns}
    shapes: Shapes = {}
    for field, array in stored.items():
        if array.shards is None:
            raise SystemExit(f"{field} is not sharded")
        shapes[field] = array.shards, array.chunks
    return columns, shapes


def main() -> int:
    repeats = parse_repeats(default=5)
    report = Report("storage_write", "Writing 4M steps: observations, actions, rewards, two flags")
    episodes = list(random_episodes(NUM_STEPS))
    arrays = as_arrays(episodes)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "steps.zarr"
        write_arrays(path, arrays)
        columns, shapes = read_back(path)
        num_megabytes = sum(column.nbytes for column in columns.values()) / 1e6

        def rate(write: Callable[[], None]) -> Callable[[], float]:
            def megabytes_per_second() -> float:
                shutil.rmtree(path)
                os.sync()
                start = time.perf_counter()
                write()
                return num_megabytes / (time.perf_counter() - start)

            return megabytes_per_second

        cases = {
            "dask-rl, arrays": rate(lambda: write_arrays(path, arrays)),
            "zarr-python": rate(lambda: write_with_zarr(path, columns, shapes)),
            "dask-rl, episodes": rate(lambda: write_episodes(path, episodes)),
        }
        report.samples = interleaved(cases, "MB/s", repeats)
    ours, zarr_python, _ = report.samples.values()
    report.gates = [Gate("arrays against zarr-python", ours / zarr_python, 1.0)]
    report.notes.append(f"{num_megabytes:.0f} MB of rows, to the file system of {tempfile.gettempdir()}.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
