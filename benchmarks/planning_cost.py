"""What does it cost to know which rows go where, before any is read?

Partitioning: a synthetic index of 10⁹ steps in 10⁶ episodes, over 1,024 data shards: transitions, the order of every
shard's first epoch, the rows of every block. Each repeat in a process of its own, whose peak of memory is taken.
Opening: a dataset of 10⁶ episodes on disk, of one step each.
Gates: partitioning within 2 s and 500 MB, opening within 1 s.
"""

import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from harness import Gate, Report, Sample, parse_repeats
from problem import ACTION_SPACE, OBSERVATION_SPACE, feed_config

from dask_rl.pipeline.feed.blocks import plan_block
from dask_rl.pipeline.feed.config import FeedConfig, resolve_feed
from dask_rl.pipeline.feed.sampling import Halo
from dask_rl.pipeline.feed.source import plan_feed
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.formats.arrays import import_arrays

NUM_STEPS, NUM_EPISODES, NUM_SHARDS = 10**9, 10**6, 1024
ROW_BYTES = 4 * (17 + 6 + 1 + 1) + 1 + 16


@dataclass(frozen=True)
class Index:
    """What a feed asks a dataset for before it reads rows."""

    episode_ends: npt.NDArray[np.int64]
    content_hash: str = "synthetic"

    @property
    def num_episodes(self) -> int:
        """Their number."""
        return len(self.episode_ends)

    @property
    def episode_starts(self) -> npt.NDArray[np.int64]:
        """First rows."""
        return np.concatenate([[0], self.episode_ends[:-1]])

    @property
    def has_final_observation(self) -> npt.NDArray[np.bool_]:
        """All of them have one."""
        return np.ones(self.num_episodes, np.bool_)


def partition() -> tuple[float, float]:
    """Return seconds and megabytes."""
    cuts = np.sort(np.random.default_rng(0).choice(NUM_STEPS - 1, NUM_EPISODES - 1, replace=False) + 1)
    lengths = np.diff(np.concatenate([[0], cuts, [NUM_STEPS]]))
    index = Index(np.cumsum(lengths + 1))
    del cuts, lengths
    config = FeedConfig("synthetic", ("next_observations",), batch_size=NUM_SHARDS, num_shards=NUM_SHARDS)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now on
    before, start = _status("VmRSS"), time.perf_counter()
    feed = resolve_feed(config, cast(Any, index), row_bytes=ROW_BYTES, halo=Halo(next=1))
    num_rows = 0
    for shard in range(NUM_SHARDS):
        order = feed.order(shard)
        windows = order.epoch_windows(0)
        assert sum(window.num_rows for window in windows) == order.num_positions
        for block in range(order.num_blocks):
            num_rows += plan_block(feed, shard, order.block_part(block), Halo(next=1)).num_rows
    seconds = time.perf_counter() - start
    assert num_rows >= NUM_STEPS
    return seconds, (_status("VmHWM") - before) / 1e6


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def write_short_episodes(path: Path) -> None:
    """Import 10⁶ episodes of one step."""
    rng = np.random.default_rng(0)
    import_arrays(
        path,
        observations=rng.standard_normal((2 * NUM_EPISODES, *OBSERVATION_SPACE.shape), np.float32),
        actions=rng.random((NUM_EPISODES, *ACTION_SPACE.shape), np.float32) * 2 - 1,
        rewards=rng.standard_normal(NUM_EPISODES, np.float32),
        terminations=np.ones(NUM_EPISODES, np.bool_),
        observation_space=OBSERVATION_SPACE,
        action_space=ACTION_SPACE,
    )


def open_dataset(path: Path) -> float:
    """Return seconds."""
    start = time.perf_counter()
    with OfflineDataset.open(path) as dataset:
        assert dataset.num_episodes == NUM_EPISODES
        return time.perf_counter() - start


def open_and_plan(path: Path) -> float:
    """Return seconds."""
    start = time.perf_counter()
    plan_feed(feed_config(path, 1, NUM_SHARDS // 4, resident=False))
    return time.perf_counter() - start


def main() -> int:
    repeats = parse_repeats()
    report = Report("planning_cost", "Planning for 1M episodes: before any row is read")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "short.zarr"
        start = time.perf_counter()
        write_short_episodes(path)
        report.notes.append(f"Importing the 1M episodes took {time.perf_counter() - start:.2f} s.")
        opened, planned = zip(*((open_dataset(path), open_and_plan(path)) for _ in range(repeats)), strict=True)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        seconds, megabytes = zip(*(pool.submit(partition).result(timeout=120) for _ in range(repeats)), strict=True)
    report.samples = {
        "partitioning 1e9 steps over 1024 shards": Sample("s", seconds),
        "its memory": Sample("MB", megabytes),
        "opening 1e6 episodes": Sample("s", opened),
        "opening, and planning a feed of 256 shards": Sample("s", planned),
    }
    gates = {"partitioning 1e9 steps over 1024 shards": 2.0, "its memory": 500.0, "opening 1e6 episodes": 1.0}
    report.gates = [Gate(case, report.samples[case], limit, "at most") for case, limit in gates.items()]
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
