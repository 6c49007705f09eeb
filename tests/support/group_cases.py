"""Learner groups, their inputs, and a learner that can be held up and tells what befell it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learner_cases import ACTIONS, OBSERVATIONS, ShardedSource, make_batch

from dask_rl.learners.algorithms.bc import BCModule
from dask_rl.learners.batch import Batch
from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.learner import Learner
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec, register_module
from dask_rl.storage.episode import Episode
from dask_rl.storage.multi_agent_episode import MultiAgentEpisode

SPEC = RLModuleSpec(OBSERVATIONS, ACTIONS["continuous"])
TWO_MODULES = MultiRLModuleSpec({"a": SPEC, "b": SPEC})
_GATE_SECONDS = 60.0


def group_config(num_learners: int, algorithm: dict[str, Any] | None = None, **settings: Any) -> LearnerGroupConfig:
    """Small networks in float64; settings of the group or of its learners."""
    own = {name: settings.pop(name) for name in list(settings) if name in LearnerGroupConfig.model_fields}
    learners = {"precision": "fp64", "compile": "off", "num_threads_per_learner": 1, **settings}
    return LearnerGroupConfig(
        algorithm={"hidden_sizes": [5, 4], **(algorithm or {"name": "iql", "dropout": 0.2})},
        learners=LearnersConfig(num_learners=num_learners, **learners),
        **own,
    )


def rows_of(rows: int, seed: int = 0) -> Batch:
    return make_batch("continuous", rows, seed)


def make_episode(length: int, seed: int) -> Episode:
    rng = np.random.default_rng(seed)
    last = np.arange(length) == length - 1
    return Episode(
        observations=rng.normal(size=(length + 1, 3)).astype(np.float32),
        actions=rng.uniform(-1, 1, (length, 2)).astype(np.float32),
        rewards=rng.normal(size=length).astype(np.float32),
        terminations=last & (seed % 2 == 0),
        truncations=last & (seed % 2 == 1),
        id=seed,
    )


def make_multi_agent_episode(lengths: Sequence[int], seed: int) -> MultiAgentEpisode:
    """Agents that train modules a and b by turns."""
    agents = {f"agent{place}": make_episode(length, seed + place) for place, length in enumerate(lengths)}
    module_ids = {name: "ab"[place % 2] for place, name in enumerate(agents)}
    return MultiAgentEpisode(agents, module_ids, {name: np.arange(len(each)) for name, each in agents.items()})


def flat(weights: Any) -> np.ndarray:
    """Weights by module id as one vector."""
    return np.concatenate([np.asarray(w).ravel() for m in sorted(weights) for _, w in sorted(weights[m].items())])


def ask(group: LearnerGroup, func: Any, **kwargs: Any) -> list[Any]:
    """What func(learner) gives on each learner."""
    return [result.get() for result in group.foreach_learner(func, **kwargs)]


def everything(learner: Learner) -> list[np.ndarray]:
    """Every tensor that a learner's next step depends on: weights, targets, buffers, optimizer state."""
    return [tensor.detach().cpu().numpy().copy() for tensor in learner._shared_tensors()]


def assert_learners_agree(group: LearnerGroup) -> None:
    """All learners hold the same bits."""
    first, *others = ask(group, everything)
    for other in others:
        assert len(other) == len(first)
        for mine, theirs in zip(first, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@dataclass(frozen=True)
class Sharded:
    """Data that any number of learners shares."""

    num_shards: int = 4
    rows_per_shard: int = 3

    def shares(self, num_learners: int) -> list[ShardedSource]:
        each = self.num_shards // num_learners
        return [
            ShardedSource("continuous", tuple(range(rank * each, (rank + 1) * each)), self.num_shards)
            for rank in range(num_learners)
        ]

    def rows_per_batch(self) -> int:
        return self.num_shards * self.rows_per_shard


def hold(learner: Learner, gate: str) -> int:
    """Keep a learner busy until a file exists."""
    deadline = time.monotonic() + _GATE_SECONDS
    while not Path(gate).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opened {gate}")
        time.sleep(0.002)
    return learner.step


class BreakingLearner(Learner):
    """Its losses fail for batches with a field "breaks"."""

    def compute_losses(self, module_id: str, batch: Batch, noise: Any, phase: Any) -> dict[str, torch.Tensor]:
        if "breaks" in batch:
            raise RuntimeError("a batch that breaks")
        return super().compute_losses(module_id, batch, noise, phase)


class TellingLearner(BreakingLearner):
    """Remembers its update calls; they are held up by `gate`, and at their end those of rank 0 by `gate_of_0`.

    Gates are files that are open when they exist. `slow` says how many seconds a rank takes longer.
    """

    def build(self) -> None:
        self.before: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.after: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.requests: list[int | None] = []
        super().build()

    def before_gradient_based_update(
        self, timesteps: Any, gate: str | None = None, slow: dict[int, float] | None = None, **kwargs: Any
    ) -> None:
        self.before.append((dict(timesteps), kwargs))
        self.requests.append(self.open_request)
        if gate is not None:
            hold(self, gate)
        time.sleep((slow or {}).get(self.collective.rank, 0.0))

    def after_gradient_based_update(self, timesteps: Any, gate_of_0: str | None = None, **kwargs: Any) -> None:
        if gate_of_0 is not None and self.collective.rank == 0:
            hold(self, gate_of_0)
        self.after.append((dict(timesteps), kwargs))


class SumLearner(Learner):
    """Its loss is the sum of all its parameters, for each row."""

    def compute_losses(self, module_id: str, batch: Batch, noise: Any, phase: Any) -> dict[str, torch.Tensor]:
        total = sum(parameter.sum() for parameter in self.module[module_id].parameters() if parameter.requires_grad)
        return {"sum_loss": total * len(batch["observations"])}


@register_module
class BufferedModule(BCModule):
    """A policy beside which there are a bare parameter and moving statistics."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.log_alpha = torch.nn.Parameter(torch.zeros(()))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


class BufferedLearner(Learner):
    """Trains the bare parameter, and moves the statistics by the rows of all learners."""

    def compute_losses(self, module_id: str, batch: Batch, noise: Any, phase: Any) -> dict[str, torch.Tensor]:
        observations = batch["observations"]
        self.sums = torch.stack([observations.mean(-1).sum(), observations.new_tensor(len(observations))])
        alpha_loss = (self.module[module_id].log_alpha - 1).square() * len(observations)
        return {**super().compute_losses(module_id, batch, noise, phase), "alpha_loss": alpha_loss}

    def apply_gradients(self, keys: Any) -> None:
        super().apply_gradients(keys)
        self.collective.all_reduce_(self.sums)
        module = self.module["default_module"]
        module.mean.lerp_(self.sums[0] / self.sums[1], 0.5)
        module.count += 1
