"""How fast is a dataset written? Our writer against zarr-python's; for information, there is no gate.

Ours takes episodes, or the same in columns, checks every value, adds checksums, syncs every file and commits
atomically. zarr-python is given the finished columns, in the same shards and chunks, with checksums; it syncs nothing.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zarr
from harness import Report, interleaved, parse_repeats
from problem import ACTION_SPACE, OBSERVATION_SPACE, random_episodes
from zarr.codecs import BytesCodec, Crc32cCodec

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.step_columns import StepColumns
from dask_rl.storage.writer import DatasetWriter

NUM_STEPS = 1_000_000
SPACES = {"observation_space": OBSERVATION_SPACE, "action_space": ACTION_SPACE}
FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")


def as_columns(episodes: list[Episode]) -> StepColumns:
    """Return the same episodes as columns."""
    columns = {field: np.concatenate([getattr(episode, field) for episode in episodes]) for field in FIELDS}
    return StepColumns(columns, np.array([len(episode) for episode in episodes]))


def main() -> int:
    repeats = parse_repeats(default=5)
    report = Report("storage_write", "Writing 1M steps: observations, actions, rewards, two flags")
    episodes = list(random_episodes(NUM_STEPS))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)

        def write_ours() -> OfflineDataset:
            with DatasetWriter(directory / "ours.zarr", overwrite=True, **SPACES) as writer:
                writer.add_episodes(episodes)
            return OfflineDataset.open(directory / "ours.zarr")

        with write_ours() as dataset:
            columns = {field: dataset.read(field, 0, dataset.num_rows) for field in dataset.arrays}
            stored = {field: zarr.open_array(dataset.path, path=f"data/{field}", mode="r") for field in columns}
            shapes = {field: (array.shards, array.chunks) for field, array in stored.items()}
        num_megabytes = sum(column.nbytes for column in columns.values()) / 1e6

        def ours() -> float:
            start = time.perf_counter()
            write_ours().close()
            return num_megabytes / (time.perf_counter() - start)

        steps = as_columns(episodes)

        def ours_at_once() -> float:
            start = time.perf_counter()
            with DatasetWriter(directory / "ours.zarr", overwrite=True, **SPACES) as writer:
                writer.add_steps(steps)
            return num_megabytes / (time.perf_counter() - start)

        def zarr_python() -> float:
            start = time.perf_counter()
            group = zarr.open_group(directory / "zarr_python.zarr", mode="w")
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
            return num_megabytes / (time.perf_counter() - start)

        report.samples = interleaved(
            {"dask-rl, episodes": ours, "dask-rl, columns": ours_at_once, "zarr-python": zarr_python}, "MB/s", repeats
        )
    report.notes.append(f"{num_megabytes:.0f} MB of rows, to the file system of {tempfile.gettempdir()}.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
