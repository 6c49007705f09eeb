"""Sizes of blocks and windows under a memory budget."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch

from dask_rl.pipeline.feed import config, residence
from dask_rl.pipeline.feed.config import MAX_BLOCKS, FeedConfig, resolve_feed
from dask_rl.pipeline.feed.sampling import Halo, Sampling
from dask_rl.pipeline.feed.source import plan_feed
from dask_rl.storage.building.step_columns import StepColumns
from dask_rl.storage.errors import ConfigError
from dask_rl.storage.writer import DatasetWriter

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def short_episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 episodes of 12 steps; every other one has the higher return."""
    path = tmp_path_factory.mktemp("sizes") / "short.zarr"
    lengths = np.full(1000, 12)
    num_steps = int(lengths.sum())
    space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    ends = np.arange(num_steps) % 12 == 11
    rewards = (np.arange(num_steps) // 12 % 2).astype(np.float32)
    columns = {
        "observations": np.zeros((num_steps + len(lengths), 4), np.float32),
        "actions": np.zeros((num_steps, 4), np.float32),
        "rewards": rewards,
        "terminations": ends,
        "truncations": np.zeros_like(ends),
    }
    with DatasetWriter(path, observation_space=space, action_space=space) as writer:
        writer.add_steps(StepColumns(columns, lengths))
    return path


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "MAX_BLOCKS", 64)


def open_feed(path: Path, **changes: Any) -> None:
    fields = changes.pop("fields", ("observations", "actions", "rewards", "next_observations"))
    settings = FeedConfig(str(path), fields, resident=False, **{"batch_size": 64, **changes})
    plan_feed(settings).shares(1)[0].open(CPU, 60.0).close()


def least_budget(path: Path, **changes: Any) -> int:
    with pytest.raises(ConfigError, match="allowed: at least") as caught:
        open_feed(path, memory_budget_bytes=1000, **changes)
    found = re.search(r"at least (\d+) for streaming", str(caught.value))
    assert found is not None
    return int(found[1])


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize(
    "changes",
    [{}, {"num_shards": 1}, {"fields": ("observations", "returns_to_go")}, {"sampling": Sampling(n_step=3)}],
)
def test_the_least_budget_is_named_and_is_enough(short_episodes: Path, changes: dict[str, Any]) -> None:
    least = least_budget(short_episodes, **changes)
    open_feed(short_episodes, memory_budget_bytes=least, **changes)


@pytest.mark.usefixtures("few_blocks")
def test_batches_and_their_index_count(short_episodes: Path) -> None:
    sampling = Sampling(sampler="sequences", sequence_length=10)
    small, large = (least_budget(short_episodes, sampling=sampling, batch_size=batch_size) for batch_size in (64, 6400))
    row_bytes = 4 * (4 + 4 + 1 + 4)  # observations, actions, rewards and next observations
    assert large - small > 10 * (6400 - 64) * (row_bytes + 8 + 8)


@pytest.mark.parametrize("fields", [("observations", "next_observations"), ("observations", "returns_to_go")])
def test_rows_that_are_kept_between_chosen_episodes_count(short_episodes: Path, fields: tuple[str, ...]) -> None:
    for budget in (250_000, 400_000):
        open_feed(short_episodes, fields=fields, top_fraction=0.5, memory_budget_bytes=budget)


def test_a_budget_that_is_too_small_plans_no_block_for_each_row() -> None:
    ends = np.arange(1, 1001) * 10_001
    dataset = SimpleNamespace(
        content_hash="",
        num_episodes=len(ends),
        episode_starts=ends - 10_001,
        episode_ends=ends,
        has_final_observation=np.ones(len(ends), np.bool_),
    )
    settings = FeedConfig("", ("observations", "returns_to_go"), batch_size=8, memory_budget_bytes=1)
    feed = resolve_feed(settings, cast(Any, dataset), row_bytes=100, halo=Halo())
    assert sum(feed.order(shard).num_blocks for shard in range(8)) <= MAX_BLOCKS + 8


def test_what_is_free_is_no_more_than_a_worker_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SimpleNamespace(memory_manager=SimpleNamespace(memory_limit=1000))
    monkeypatch.setattr(residence, "get_worker", lambda: worker)
    assert residence.available_bytes() == 1000
    worker.memory_manager.memory_limit = None
    assert residence.available_bytes() > 1000
    monkeypatch.setattr(residence, "MEMORY_LIMIT", 2000)
    assert residence.available_bytes() == 2000
