"""Returns-to-go of an episode that spans all data shards."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from dask_rl.pipeline.feed.config import FeedConfig, resolve_feed
from dask_rl.pipeline.feed.derived import derive_columns
from dask_rl.pipeline.feed.layout import plan_layout
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.transforms import ScaleReward
from dask_rl.storage.writer import DatasetWriter

NUM_STEPS, NUM_SHARDS = 4000, 4


@pytest.mark.data
def test_a_shard_keeps_no_returns_but_its_own(tmp_path: Path) -> None:
    rewards = np.random.default_rng(0).normal(size=NUM_STEPS).astype(np.float32)
    space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    last = np.arange(NUM_STEPS) == NUM_STEPS - 1
    with DatasetWriter(tmp_path / "long.zarr", observation_space=space, action_space=space) as writer:
        rows = np.zeros((NUM_STEPS + 1, 1), np.float32)
        writer.add_episode(
            Episode(observations=rows, actions=rows[1:], rewards=rewards, terminations=last, truncations=~last & last)
        )
    config = FeedConfig(
        str(tmp_path / "long.zarr"),
        ("observations", "returns_to_go"),
        batch_size=NUM_SHARDS,
        num_shards=NUM_SHARDS,
        discount=0.9,
        transforms={"rewards": (ScaleReward(2.0, 1.0),)},
    )
    with OfflineDataset.open(config.dataset) as dataset:
        layout = plan_layout(config, dataset)
        feed = resolve_feed(config, dataset, row_bytes=layout.row_bytes, halo=layout.halo)
        derived = derive_columns(feed, layout, dataset, tuple(range(NUM_SHARDS)))
    assert derived.num_bytes <= 4 * (NUM_STEPS + NUM_SHARDS)
    wanted, total = np.zeros(NUM_STEPS), 0.0
    for step in reversed(range(NUM_STEPS)):
        wanted[step] = total = float(rewards[step] * np.float32(2) + np.float32(1)) + 0.9 * total
    for shard in range(NUM_SHARDS):
        first, values = derived.returns[shard]
        np.testing.assert_array_equal(values[:1000], wanted[first : first + 1000].astype(np.float32))
