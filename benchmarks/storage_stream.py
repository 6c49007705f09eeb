"""How fast do shuffled transitions stream? A million steps, read from the page cache block by block, and forgotten.

A transition is an observation (17), an action (6) and the next observation (17), all float32; next observations are
stored nowhere but as the rows behind. Ours is the feed as a learner uses it, in its streaming mode, with every chunk's
checksum verified. Beside it a loop that does the same with zarr-python on the very same store (which verifies
checksums too) and with h5py (chunked, no compression, no checksum): blocks in random order, the rows of a block
shuffled, gathered into reused batches of 256. For information also without any shuffling: h5py read in order.
Gates: at least 2 times zarr-python; at least h5py.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import torch
import zarr
from harness import Gate, Report, interleaved, parse_repeats
from problem import BATCH_SIZE, write_dataset

from dask_rl.pipeline.feed.config import FeedConfig
from dask_rl.pipeline.feed.iterator import DatasetIterator
from dask_rl.pipeline.feed.source import plan_feed
from dask_rl.storage.dataset import OfflineDataset

FIELDS = ("observations", "actions")
NUM_STEPS = 1_000_000
BLOCK_ROWS = 2**16
GATHERED_ROWS = 16 * BATCH_SIZE  # at once, as the feed does
TIMEOUT_SECONDS = 60.0

Rows = npt.NDArray[np.float32]
ReadRows = Callable[[str, int, int], Rows]


def open_feed(path: Path) -> DatasetIterator:
    """Open a streaming feed of one learner."""
    config = FeedConfig(
        dataset=str(path),
        fields=(*FIELDS, "next_observations"),
        batch_size=BATCH_SIZE,
        num_shards=1,
        resident=False,
        block_rows=BLOCK_ROWS,
        window_rows=BLOCK_ROWS,
    )
    return plan_feed(config).shares(1)[0].open(torch.device("cpu"), TIMEOUT_SECONDS)


class BlockLoop:
    """What a feed does, as a plain loop around something that reads rows."""

    def __init__(self, read: ReadRows, episode_ends: npt.NDArray[np.int64], row_sizes: dict[str, int]) -> None:
        self._read = read
        self._is_final = np.zeros(int(episode_ends[-1]), np.bool_)
        self._is_final[episode_ends - 1] = True
        self._rng = np.random.default_rng(0)
        keys = {"observations": "observations", "actions": "actions", "next_observations": "observations"}
        self._out = {key: np.empty((GATHERED_ROWS, row_sizes[field]), np.float32) for key, field in keys.items()}

    def batches(self) -> Iterator[dict[str, Rows]]:
        """Yield the batches of one epoch; those whose next row lies in another block are left out."""
        starts = np.arange(0, len(self._is_final), BLOCK_ROWS)
        for start in self._rng.permutation(starts).tolist():
            stop = min(start + BLOCK_ROWS, len(self._is_final))
            observations, actions = (self._read(field, start, stop) for field in FIELDS)
            rows = self._rng.permutation(np.flatnonzero(~self._is_final[start : stop - 1]))
            for first in range(0, len(rows), GATHERED_ROWS):
                chosen = rows[first : first + GATHERED_ROWS]
                out = {key: array[: len(chosen)] for key, array in self._out.items()}
                np.take(observations, chosen, axis=0, out=out["observations"], mode="clip")
                np.take(actions, chosen, axis=0, out=out["actions"], mode="clip")
                np.take(observations, chosen + 1, axis=0, out=out["next_observations"], mode="clip")
                for row in range(0, len(chosen), BATCH_SIZE):
                    yield {key: array[row : row + BATCH_SIZE] for key, array in out.items()}


def in_order(read: ReadRows, num_rows: int) -> Iterator[dict[str, Rows]]:
    """Yield batches as views of what was read, with the last rows of episodes among them."""
    for start in range(0, num_rows, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, num_rows)
        observations, actions = (read(field, start, stop) for field in FIELDS)
        for row in range(0, stop - start - 1, BATCH_SIZE):
            upto = min(row + BATCH_SIZE, stop - start - 1)
            following = observations[row + 1 : upto + 1]
            yield {"observations": observations[row:upto], "actions": actions[row:upto], "next_observations": following}


def open_readers(dataset: OfflineDataset, directory: Path) -> dict[str, ReadRows]:
    """Write the rows as HDF5 too; return how zarr-python and h5py read them."""
    arrays = {field: zarr.open_array(dataset.path, path=f"data/{field}", mode="r") for field in FIELDS}
    with h5py.File(directory / "rows.h5", "w") as file:
        for field, array in arrays.items():
            file.create_dataset(field, data=dataset.read(field, 0, dataset.num_rows), chunks=array.chunks)
    hdf5 = h5py.File(directory / "rows.h5", "r")
    buffers = {field: np.empty((BLOCK_ROWS, *dataset.arrays[field].row_shape), np.float32) for field in FIELDS}

    def zarr_python(field: str, start: int, stop: int) -> Rows:
        return np.asarray(arrays[field][start:stop])

    def h5py_chunked(field: str, start: int, stop: int) -> Rows:
        hdf5[field].read_direct(buffers[field], np.s_[start:stop], np.s_[: stop - start])
        return buffers[field][: stop - start]

    return {"zarr-python": zarr_python, "h5py": h5py_chunked}


def rate(epoch: Callable[[], Iterator[object]]) -> Callable[[], float]:
    """Return what measures millions of transitions a second over an epoch."""

    def millions_per_second() -> float:
        start = time.perf_counter()
        num_batches = sum(1 for _ in epoch())
        return num_batches * BATCH_SIZE / 1e6 / (time.perf_counter() - start)

    return millions_per_second


def main() -> int:
    repeats = parse_repeats()
    report = Report("storage_stream", "Streaming transitions of 17 + 6 + 17 float32, shuffled, in batches of 256")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path = directory / "rows.zarr"
        with write_dataset(path, NUM_STEPS) as dataset:
            reads = open_readers(dataset, directory)
            ends = np.asarray(dataset.episode_ends, np.int64)
            sizes = {field: dataset.arrays[field].row_shape[0] for field in FIELDS}
        loops = {case: BlockLoop(read, ends, sizes) for case, read in reads.items()}
        iterator = open_feed(path)

        def feed() -> Iterator[object]:
            return (iterator.next_batch() for _ in repeat(None, NUM_STEPS // BATCH_SIZE))

        cases = {
            "dask-rl": rate(feed),
            **{case: rate(loop.batches) for case, loop in loops.items()},
            "h5py, in order": rate(lambda: in_order(reads["h5py"], int(ends[-1]))),
        }
        for case in cases.values():
            case()  # warms the page cache
        report.samples = interleaved(cases, "M transitions/s", repeats)
        iterator.close()
    ours, zarr_python, hdf5, _ = report.samples.values()
    report.gates = [Gate("against zarr-python", ours / zarr_python, 2.0), Gate("against h5py", ours / hdf5, 1.0)]
    report.notes.append(f"Warm page cache for all. Blocks of {BLOCK_ROWS} rows; ours loads the next one in a thread.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
