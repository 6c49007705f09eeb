"""How fast do stacked frames come out of single ones? Observations of 84×84 bytes, four to a stack, batches of 256.

Frames look like those of a game: a still background and things that move. Single ones are stored, in chunks of many,
compressed with zstd. Ours is the feed as a learner uses it, in its streaming mode: shuffled, checksums verified.
Beside it a loop that does the same with zarr-python on the very same store: blocks in random order, their frames
shuffled and stacked into reused batches. And torch's DataLoader with two workers over HDF5 (a chunk a frame, lzf),
where each sample is read at random: the usual way to do it, over a part of the epoch.
Gates: at least 2 times zarr-python; at least 10 times the DataLoader.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice, repeat
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import numpy.typing as npt
import torch
import zarr
from harness import Gate, Report, interleaved, parse_repeats
from problem import BATCH_SIZE

from dask_rl.pipeline.feed.config import FeedConfig
from dask_rl.pipeline.feed.iterator import DatasetIterator
from dask_rl.pipeline.feed.sampling import Sampling
from dask_rl.pipeline.feed.source import plan_feed
from dask_rl.storage.episode import Episode
from dask_rl.storage.writer import DatasetWriter

NUM_EPISODES, EPISODE_STEPS, SIDE, STACK = 64, 512, 84, 4
NUM_STEPS = NUM_EPISODES * EPISODE_STEPS
BLOCK_ROWS = 4096
DATALOADER_BATCHES = 8
TIMEOUT_SECONDS = 60.0
SPACES = {
    "observation_space": gymnasium.spaces.Box(0, 255, (SIDE, SIDE), np.uint8),
    "action_space": gymnasium.spaces.Discrete(4),
}

Frames = npt.NDArray[np.uint8]


def game(seed: int) -> Frames:
    """Return the frames of an episode, with its final one."""
    rng = np.random.default_rng(seed)
    background = np.repeat(np.repeat(rng.integers(0, 90, (12, 12), np.uint8), 7, axis=0), 7, axis=1)
    frames = np.repeat(background[None], EPISODE_STEPS + 1, axis=0)
    steps = np.arange(EPISODE_STEPS + 1)
    for size in (3, 4, 5, 6, 8):
        speed, place, colour = rng.uniform(-2, 2, 2), rng.uniform(0, SIDE, 2), int(rng.integers(100, 256))
        corners = ((place + speed * steps[:, None]) % (SIDE - size)).astype(int)
        for frame, (y, x) in zip(frames, corners.tolist(), strict=True):
            frame[y : y + size, x : x + size] = colour
    return frames


def episodes() -> Iterator[Episode]:
    """Yield the episodes, the same ones each time."""
    rng = np.random.default_rng(0)
    ends = np.arange(EPISODE_STEPS) == EPISODE_STEPS - 1
    for seed in range(NUM_EPISODES):
        actions = rng.integers(0, 4, EPISODE_STEPS)
        yield Episode(game(seed), actions, rng.random(EPISODE_STEPS, np.float32), ends, np.zeros_like(ends))


def open_feed(path: Path) -> DatasetIterator:
    """Open a streaming feed of one learner."""
    config = FeedConfig(
        dataset=str(path),
        fields=("observations",),
        batch_size=BATCH_SIZE,
        num_shards=1,
        resident=False,
        block_rows=BLOCK_ROWS,
        window_rows=BLOCK_ROWS,
        sampling=Sampling(frame_stack=STACK),
    )
    return plan_feed(config).shares(1)[0].open(torch.device("cpu"), TIMEOUT_SECONDS)


def stack_rows(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return which rows are stacked for each, (N, k); those before an episode's first are the first again."""
    firsts = rows // (EPISODE_STEPS + 1) * (EPISODE_STEPS + 1)
    return np.maximum(rows[:, None] + np.arange(1 - STACK, 1), firsts[:, None])


def zarr_batches(frames: zarr.Array) -> Iterator[Frames]:
    """Yield the batches of one epoch in blocks of whole episodes."""
    rng = np.random.default_rng(0)
    out = np.empty((BATCH_SIZE, STACK, SIDE, SIDE), np.uint8)
    block_episodes = BLOCK_ROWS // EPISODE_STEPS
    for block in rng.permutation(NUM_EPISODES // block_episodes).tolist():
        base = block * block_episodes * (EPISODE_STEPS + 1)
        rows = np.asarray(frames[base : base + block_episodes * (EPISODE_STEPS + 1)])
        numbers = np.arange(len(rows)).reshape(block_episodes, EPISODE_STEPS + 1)[:, :-1].reshape(-1)
        for chosen in rng.permutation(numbers).reshape(-1, BATCH_SIZE):
            yield np.take(rows, stack_rows(chosen), axis=0, out=out, mode="clip")


class RandomFrames(torch.utils.data.Dataset[torch.Tensor]):
    """Stacks at random places of an HDF5 file, opened by each worker for itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._frames: h5py.Dataset | None = None

    def __len__(self) -> int:
        return NUM_STEPS

    def __getitem__(self, step: int) -> torch.Tensor:
        if self._frames is None:
            self._frames = h5py.File(self._path, "r")["frames"]
        row = step + step // EPISODE_STEPS
        first = row - step % EPISODE_STEPS
        rows = self._frames[max(row + 1 - STACK, first) : row + 1]
        padding = np.repeat(rows[:1], STACK - len(rows), axis=0)
        return torch.from_numpy(np.concatenate([padding, rows]))


def rate(batches: Callable[[], Iterator[object]]) -> Callable[[], float]:
    """Return what measures thousands of stacks a second; the start of workers is not counted."""

    def thousands_per_second() -> float:
        iterator = batches()
        next(iterator)
        start = time.perf_counter()
        num_batches = sum(1 for _ in iterator)
        return num_batches * BATCH_SIZE / 1e3 / (time.perf_counter() - start)

    return thousands_per_second


def main() -> int:
    repeats = parse_repeats(default=5)
    report = Report("frames", "Stacks of 4 frames of 84 x 84 from single ones, shuffled, in batches of 256")
    with tempfile.TemporaryDirectory() as name:
        path, copy = Path(name) / "frames.zarr", Path(name) / "frames.h5"
        with DatasetWriter(path, **SPACES) as writer:
            writer.add_episodes(episodes())
        array = zarr.open_array(path, path="data/observations", mode="r")
        with h5py.File(copy, "w") as file:
            file.create_dataset("frames", data=array[:], chunks=(1, SIDE, SIDE), compression="lzf")
        loader = torch.utils.data.DataLoader(RandomFrames(copy), BATCH_SIZE, shuffle=True, num_workers=2)
        iterator = open_feed(path)
        cases = {
            "dask-rl": rate(lambda: (iterator.next_batch() for _ in repeat(None, NUM_STEPS // BATCH_SIZE))),
            "zarr-python": rate(lambda: zarr_batches(array)),
            "DataLoader, h5py": rate(lambda: islice(iter(loader), DATALOADER_BATCHES + 1)),
        }
        cases["dask-rl"]()
        report.samples = interleaved(cases, "k stacks/s", repeats)
        iterator.close()
    ours, zarr_python, dataloader = report.samples.values()
    report.gates = [
        Gate("against zarr-python", ours / zarr_python, 2.0),
        Gate("against DataLoader and h5py", ours / dataloader, 10.0),
    ]
    report.notes.append(f"{NUM_STEPS} steps. Warm page cache for all; chunks of {array.chunks[0]} frames in the store.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
