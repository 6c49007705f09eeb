"""The problem that all benchmarks are about: observation 17, action 6, as in halfcheetah; random numbers."""

from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import torch

from dask_rl.learners.batch import Batch
from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.module import RLModuleSpec
from dask_rl.pipeline.feed.config import FeedConfig
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.writer import DatasetWriter

OBSERVATION_SIZE, ACTION_SIZE, HIDDEN_SIZES, BATCH_SIZE = 17, 6, (256, 256), 256
EPISODE_STEPS = 1000
OBSERVATION_SPACE = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float32)
ACTION_SPACE = gymnasium.spaces.Box(-1, 1, (ACTION_SIZE,), np.float32)
MODULE_SPEC = RLModuleSpec(OBSERVATION_SPACE, ACTION_SPACE)
IQL_FIELDS = ("observations", "actions", "rewards", "terminations", "next_observations", "next_valid")


def iql_config(learners: LearnersConfig, update_order: str = "simultaneous") -> LearnerGroupConfig:
    """Return IQL as the literature has it, with constant learning rates."""
    algorithm = {"name": "iql", "hidden_sizes": HIDDEN_SIZES, "update_order": update_order}
    return LearnerGroupConfig(algorithm=algorithm, learners=learners)  # type: ignore[arg-type]


def random_batches(num_batches: int) -> list[Batch]:
    """Return random batches, the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "observations": torch.randn(BATCH_SIZE, OBSERVATION_SIZE, generator=generator),
            "actions": torch.rand(BATCH_SIZE, ACTION_SIZE, generator=generator) * 2 - 1,
            "rewards": torch.randn(BATCH_SIZE, generator=generator),
            "terminations": (torch.rand(BATCH_SIZE, generator=generator) < 0.01).float(),
            "next_observations": torch.randn(BATCH_SIZE, OBSERVATION_SIZE, generator=generator),
            "next_valid": torch.ones(BATCH_SIZE, dtype=torch.bool),
        }
        for _ in range(num_batches)
    ]


def random_episodes(num_steps: int) -> Iterator[Episode]:
    """Yield random episodes of 1000 steps, the same ones each time."""
    generator = np.random.default_rng(0)
    for number in range(num_steps // EPISODE_STEPS):
        ends = np.zeros(EPISODE_STEPS, bool)
        ends[-1] = True
        yield Episode(
            observations=generator.standard_normal((EPISODE_STEPS + 1, OBSERVATION_SIZE), np.float32),
            actions=generator.random((EPISODE_STEPS, ACTION_SIZE), np.float32) * 2 - 1,
            rewards=generator.standard_normal(EPISODE_STEPS, np.float32),
            terminations=ends if number % 2 else np.zeros_like(ends),
            truncations=np.zeros_like(ends) if number % 2 else ends,
        )


def write_dataset(path: Path, num_steps: int) -> OfflineDataset:
    """Write `random_episodes`."""
    with DatasetWriter(path, observation_space=OBSERVATION_SPACE, action_space=ACTION_SPACE) as writer:
        writer.add_episodes(random_episodes(num_steps))
    return OfflineDataset.open(path)


def feed_config(
    path: Path, num_learners: int, num_shards: int, *, resident: bool, window_rows: int | None = None
) -> FeedConfig:
    """Return a feed of 256 rows a learner and step."""
    return FeedConfig(
        dataset=str(path),
        fields=IQL_FIELDS,
        batch_size=BATCH_SIZE * num_learners,
        num_shards=num_shards,
        resident=resident,
        window_rows=window_rows,
        block_rows=None if window_rows is None else window_rows // 4,
    )
