"""Spaces, batches and learners that tests of several files share."""

from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
import torch

from dask_rl.learners.batch import DEFAULT_MODULE_ID, Batch
from dask_rl.learners.collective import SingleProcess
from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.learner import Learner
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.errors import ConfigError
from dask_rl.storage.nested import flatten_space

OBSERVATIONS = gymnasium.spaces.Box(-10, 10, (3,), np.float32)
# Bounds whose centre and half range are exact in float32.
LOW, HIGH = np.array([-2.0, -1.0]), np.array([2.0, 3.0])
_CONTINUOUS = gymnasium.spaces.Box(LOW.astype(np.float32), HIGH.astype(np.float32))
_DISCRETE = gymnasium.spaces.Discrete(3, start=1)
ACTIONS = {
    "continuous": _CONTINUOUS,
    "discrete": _DISCRETE,
    "continuous-nested": _CONTINUOUS,
    "discrete-images": _DISCRETE,
}
_OTHER_OBSERVATIONS = {
    "continuous-nested": gymnasium.spaces.Dict(
        {
            "pose": gymnasium.spaces.Tuple((OBSERVATIONS, gymnasium.spaces.Discrete(4, start=-1))),
            "camera": gymnasium.spaces.Box(0, 255, (5, 4, 2), np.uint8),
            "flags": gymnasium.spaces.MultiBinary(2),
        }
    ),
    "discrete-images": gymnasium.spaces.Box(0, 255, (2, 3, 5, 5), np.uint8),  # two frames, channels first
}
IMAGES = {"convolutions": ((4, 3, 2),), "num_features": 12}


def observation_space(kind: str) -> gymnasium.Space[Any]:
    """The observations of a kind of ACTIONS."""
    return _OTHER_OBSERVATIONS.get(kind, OBSERVATIONS)


def make_observations(kind: str, rng: np.random.Generator, rows: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Random observations by path."""
    made = {}
    for path, space in flatten_space("observations", observation_space(kind)).items():
        if space is OBSERVATIONS:
            made[path] = torch.from_numpy(rng.normal(size=(rows, 3))).to(dtype)
        elif isinstance(space, gymnasium.spaces.Discrete):
            made[path] = torch.from_numpy(space.start + rng.integers(0, space.n, rows))
        else:
            high = 256 if space.dtype == np.uint8 else 2
            made[path] = torch.from_numpy(rng.integers(0, high, (rows, *space.shape)).astype(space.dtype))
    return made


def make_batch(kind: str, rows: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
    """Random transitions: some terminated, some cut off without a next observation, actions up to the bounds."""
    rng = np.random.default_rng(seed)
    if kind.startswith("discrete"):
        actions = torch.from_numpy(rng.integers(1, 4, rows))
    else:
        actions = torch.from_numpy(np.clip(rng.normal(1, 2, (rows, 2)), LOW, HIGH)).to(dtype)
    terminations = rng.random(rows) < 0.3
    next_valid = (rng.random(rows) < 0.8) | (np.arange(rows) == 0)
    return {
        **make_observations(kind, rng, rows, dtype),
        "actions": actions,
        "rewards": torch.from_numpy(rng.normal(size=rows)).to(dtype),
        "terminations": torch.from_numpy(terminations).to(dtype),
        **{f"next_{path}": values for path, values in make_observations(kind, rng, rows, dtype).items()},
        "next_valid": torch.from_numpy(next_valid),
    }


def make_learner(
    algorithm: dict[str, Any],
    kind: str = "continuous",
    *,
    num_steps: int = 0,
    seed: int = 0,
    learner_class: type[Learner] = Learner,
    collective: Any = None,
    modules: tuple[str, ...] = (DEFAULT_MODULE_ID,),
    **learners: Any,
) -> Learner:
    """A built learner; in float64 and without compilation unless asked otherwise."""
    config = LearnerGroupConfig(
        algorithm={"hidden_sizes": (5, 4), "images": IMAGES, **algorithm},
        learners=LearnersConfig(**{"precision": "fp64", "compile": "off", **learners}),
        seed=seed,
        num_steps=num_steps,
    )
    single = RLModuleSpec(observation_space(kind), ACTIONS[kind])
    spec = MultiRLModuleSpec(dict.fromkeys(modules, single))
    learner = learner_class(config, spec, collective=collective or SingleProcess())
    learner.build()
    return learner


def update(learner: Learner, *batches: Batch) -> dict[str, dict[str, Any]]:
    """One step on each batch; the last one's result."""
    result = {}
    for batch in batches:
        result = learner.run(UpdateRequest(learner.weights_seq_no + 1, batch={DEFAULT_MODULE_ID: batch}))
    return result


def weights(learner: Learner, module_id: str = DEFAULT_MODULE_ID) -> dict[str, np.ndarray]:
    """Parameters and buffers by name."""
    return {name: tensor.numpy() for name, tensor in learner.module[module_id].get_state().items()}


def gradients(learner: Learner, batch: Batch, noise: Any = None) -> dict[str, torch.Tensor]:
    """The summed gradients of every phase by segment, without a step."""
    out = {}
    for phase in learner.algorithms[DEFAULT_MODULE_ID].phases():
        learner.compute_gradients(
            {DEFAULT_MODULE_ID: phase}, {DEFAULT_MODULE_ID: batch}, {DEFAULT_MODULE_ID: noise or {}}
        )
        for name in phase.optimizers:
            out[f"{phase.name}/{name}"] = learner.flat.segment_grad((DEFAULT_MODULE_ID, name)).clone()
    return out


@dataclass(frozen=True)
class ShardedSource:
    """One learner's data shards of a stream of random global batches."""

    kind: str
    shards: tuple[int, ...]
    num_shards: int = 4
    rows_per_shard: int = 3
    key: str = "sharded"

    def continues(self, previous: object) -> bool:
        return isinstance(previous, ShardedSource) and replace(previous, shards=self.shards) == self

    def count_rows(self, first: int, count: int) -> int:
        return count * self.rows_per_shard * len(self.shards)

    def open(self, device: torch.device, timeout_seconds: float) -> "ShardedIterator":
        return ShardedIterator(self)


class ShardedIterator:
    is_aligned = True

    def __init__(self, source: ShardedSource) -> None:
        self.step = 0
        self.source, self.shards, self.rows_per_shard = source, source.shards, source.rows_per_shard

    def next_batch(self) -> Batch:
        rows = self.rows_per_shard
        batch = make_batch(self.source.kind, rows * self.source.num_shards, seed=1000 + self.step)
        index = torch.cat([torch.arange(shard * rows, (shard + 1) * rows) for shard in self.shards])
        self.step += 1
        return {name: tensor[index] for name, tensor in batch.items()}

    def seek(self, step: int) -> None:
        self.step = step

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class OrderedSource(ShardedSource):
    """Saves the order of its batches, and refuses to go on in another one."""

    order: int = 0
    fails: bool = field(default=False, compare=False)

    def open(self, device: torch.device, timeout_seconds: float) -> "OrderedIterator":
        if self.fails:
            raise ZeroDivisionError
        return OrderedIterator(self)


class OrderedIterator(ShardedIterator):
    source: OrderedSource

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "parameters": {"order": self.source.order}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["parameters"] != {"order": self.source.order}:
            raise ConfigError("another order")
        self.seek(state["step"])
