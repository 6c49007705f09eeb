"""How fast are rows read? A million steps of 17 + 6 float32, streamed once from the page cache into reused buffers.

Our reader verifies the checksum of every chunk. Beside it: numpy's memmap of .npy files with the same rows, copied to
the buffer (no checksum, no compression); zarr-python on the very same store; h5py, chunked, no compression.
Gates: at least 3 times zarr-python; at least 60% of the memmap.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import zarr
from harness import Gate, Report, interleaved, parse_repeats
from problem import write_dataset

from dask_rl.storage.dataset import OfflineDataset

FIELDS = ("observations", "actions")
NUM_STEPS = 1_000_000
BLOCK_ROWS = 2**16
PASSES = 3

Buffers = dict[str, npt.NDArray[np.float32]]
ReadBlock = Callable[[str, int, int, npt.NDArray[np.float32]], None]


def write_copies(dataset: OfflineDataset, directory: Path) -> None:
    """Write the same rows as .npy and as HDF5, with the chunks that the store has."""
    with h5py.File(directory / "rows.h5", "w") as file:
        for field in FIELDS:
            rows = dataset.read(field, 0, dataset.num_rows)
            np.save(directory / f"{field}.npy", rows)
            chunk_rows = zarr.open_array(dataset.path, path=f"data/{field}", mode="r").chunks[0]
            file.create_dataset(field, data=rows, chunks=(chunk_rows, *rows.shape[1:]))


def stream(read: ReadBlock, buffers: Buffers, num_rows: int) -> None:
    """Read all rows, block by block."""
    for field in FIELDS:
        for start in range(0, num_rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, num_rows)
            read(field, start, stop, buffers[field][: stop - start])


def readers(dataset: OfflineDataset, directory: Path) -> dict[str, ReadBlock]:
    arrays = {field: zarr.open_array(dataset.path, path=f"data/{field}", mode="r") for field in FIELDS}
    maps = {field: np.load(directory / f"{field}.npy", mmap_mode="r") for field in FIELDS}
    file = h5py.File(directory / "rows.h5", "r")

    def ours(field: str, start: int, stop: int, out: npt.NDArray[np.float32]) -> None:
        dataset.read(field, start, stop, out)

    def memmap(field: str, start: int, stop: int, out: npt.NDArray[np.float32]) -> None:
        np.copyto(out, maps[field][start:stop])

    def zarr_python(field: str, start: int, stop: int, out: npt.NDArray[np.float32]) -> None:
        out[...] = arrays[field][start:stop]

    def hdf5(field: str, start: int, stop: int, out: npt.NDArray[np.float32]) -> None:
        file[field].read_direct(out, np.s_[start:stop])

    return {"dask-rl": ours, "numpy memmap": memmap, "zarr-python": zarr_python, "h5py": hdf5}


def main() -> int:
    repeats = parse_repeats()
    report = Report("storage_read", "Streaming 1M x (17 + 6) float32 from the page cache")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with write_dataset(directory / "rows.zarr", NUM_STEPS) as dataset:
            write_copies(dataset, directory)
            buffers = {field: np.empty((BLOCK_ROWS, *dataset.arrays[field].row_shape), np.float32) for field in FIELDS}
            num_megabytes = dataset.num_rows * sum(buffer[0].nbytes for buffer in buffers.values()) / 1e6
            checksums = {}

            def rate(read: ReadBlock) -> Callable[[], float]:
                stream(read, buffers, dataset.num_rows)  # warms the page cache

                def megabytes_per_second() -> float:
                    start = time.perf_counter()
                    for _ in range(PASSES):
                        stream(read, buffers, dataset.num_rows)
                    return PASSES * num_megabytes / (time.perf_counter() - start)

                return megabytes_per_second

            cases = {}
            for case, read in readers(dataset, directory).items():
                cases[case] = rate(read)
                checksums[case] = float(sum(buffer.sum(dtype=np.float64) for buffer in buffers.values()))
            if len(set(checksums.values())) > 1:
                raise SystemExit(f"the readers disagree: {checksums}")
            samples = interleaved(cases, "MB/s", repeats)
    ours, memmap, zarr_python, hdf5 = samples.values()
    report.samples = samples | {"dask-rl over h5py": ours / hdf5}
    report.gates = [
        Gate("against zarr-python", ours / zarr_python, 3.0),
        Gate("against numpy memmap", ours / memmap, 0.6),
    ]
    report.notes.append(
        f"Warm page cache for all. {BLOCK_ROWS} rows a read, one thread of ours; zarr-python uses its own threads."
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
