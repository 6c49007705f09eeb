"""What happens to rows between the disk and the learner. Pure numpy."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from .errors import ConfigError, explain
from .stats import FieldStatistics

Array = npt.NDArray[Any]

FEW_EPISODES = 16
"""So many are scanned one by one: a NumPy call costs more than a step of each."""
SCAN_ROWS = 65_536
"""Steps that are Python numbers at a time."""


class Transform(Protocol):
    """An elementwise transform of the rows of one field."""

    name: ClassVar[str]

    def apply(self, array: Array, out: Array | None = None) -> Array:
        """Return the transformed rows, in `out` where it is given (it may be `array` itself)."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict for `transform_from_json`."""
        ...


@dataclass(frozen=True)
class Normalize:
    """(x - mean) / (std + eps), in float32; as TD3+BC normalises states (Fujimoto and Gu, 2021, eps = 1e-3)."""

    name: ClassVar[str] = "normalize"

    mean: tuple[float, ...]  # (row_size,), flattened
    std: tuple[float, ...]  # (row_size,), flattened
    eps: float = 1e-3

    def __post_init__(self) -> None:
        """Prepare the vectors once; the frozen fields stay plain numbers, comparable and hashable."""
        if len(self.mean) != len(self.std):
            raise ConfigError(
                explain(
                    "normalize: std",
                    got=f"{len(self.std)} numbers",
                    allowed=f"{len(self.mean)}, as many as mean has",
                    fix="take both from one FieldStatistics",
                )
            )
        scale = 1.0 / (np.asarray(self.std, np.float64) + self.eps)
        object.__setattr__(self, "_mean", np.asarray(self.mean, np.float32))
        object.__setattr__(self, "_scale", scale.astype(np.float32))

    @classmethod
    def from_statistics(cls, statistics: FieldStatistics, eps: float = 1e-3) -> Self:
        """Return the transform that gives this field mean 0 and standard deviation about 1."""
        mean, std = (tuple(column.ravel().tolist()) for column in (statistics.mean, statistics.std))
        return cls(mean=mean, std=std, eps=eps)

    def apply(self, array: Array, out: Array | None = None) -> Array:
        """Return the normalised rows.

        Args:
            array: (rows, *row_shape), of any number type.
            out: a float array of the same shape, or None for a new one in float32.
        """
        mean, scale = (vars(self)[key].reshape(array.shape[1:]) for key in ("_mean", "_scale"))
        if out is None:
            out = np.empty(array.shape, np.float32)
        np.subtract(array, mean, out=out, casting="same_kind")
        return np.multiply(out, scale, out=out, casting="same_kind")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict for `transform_from_json`."""
        return {"name": self.name, "mean": list(self.mean), "std": list(self.std), "eps": self.eps}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Self:
        """Return what `to_json` was called on."""
        return cls(mean=tuple(obj["mean"]), std=tuple(obj["std"]), eps=float(obj["eps"]))


@dataclass(frozen=True)
class ScaleReward:
    """x * scale + shift, in float32."""

    name: ClassVar[str] = "scale_reward"

    scale: float = 1.0
    shift: float = 0.0

    def apply(self, array: Array, out: Array | None = None) -> Array:
        """Return the scaled rows, in `out` or in a new float32 array."""
        if out is None:
            out = np.empty(array.shape, np.float32)
        np.multiply(array, np.float32(self.scale), out=out, casting="same_kind")
        return np.add(out, np.float32(self.shift), out=out, casting="same_kind")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict for `transform_from_json`."""
        return {"name": self.name, "scale": self.scale, "shift": self.shift}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Self:
        """Return what `to_json` was called on."""
        return cls(scale=float(obj["scale"]), shift=float(obj["shift"]))


_TRANSFORMS: dict[str, type[Normalize] | type[ScaleReward]] = {
    Normalize.name: Normalize,
    ScaleReward.name: ScaleReward,
}


def transform_from_json(obj: Mapping[str, Any]) -> Normalize | ScaleReward:
    """Return the transform that `to_json` described.

    Raises:
        ConfigError: no transform has this name.
    """
    kind = _TRANSFORMS.get(str(obj.get("name")))
    if kind is None:
        raise ConfigError(
            explain("transform", got=repr(obj.get("name")), allowed=", ".join(_TRANSFORMS), fix="choose one")
        )
    return kind.from_json(obj)


def returns_to_go(
    rewards: Array,
    episode_starts: npt.NDArray[np.int64],
    episode_ends: npt.NDArray[np.int64],
    discount: float,
    out: Array | None = None,
) -> Array:
    """Return G_t = r_t + discount * G_{t+1} for every step, 0 in the rows of final observations.

    One backward scan, all episodes at once, the last steps of the longest ones one by one; sums are taken in float64.

    Args:
        rewards: (rows,), T+1 rows an episode.
        episode_starts: first rows, relative to `rewards`, (episodes,).
        episode_ends: exclusive row ends, relative to `rewards`, (episodes,).
        discount: between 0 and 1.
        out: floats, (rows,), of episodes that cover all of them; `rewards` itself saves their memory.

    Returns:
        (rows,), `out` or in the rewards' dtype if it is a float, else float32.
    """
    dtype = rewards.dtype if rewards.dtype.kind == "f" else np.dtype(np.float32)
    result = np.zeros(len(rewards), dtype) if out is None else out
    result[episode_ends - 1] = 0
    lengths = episode_ends - episode_starts - 1
    # Longest first: the episodes that still have a step form a prefix.
    order = np.argsort(-lengths, kind="stable")
    last_steps, lengths = episode_ends[order] - 2, lengths[order]
    running = np.zeros(len(order))
    num_together = int(lengths[FEW_EPISODES]) if len(lengths) > FEW_EPISODES else 0
    alive = np.searchsorted(-lengths, -np.arange(num_together), side="left")
    for back, count in enumerate(alive):
        rows = last_steps[:count] - back
        running = rewards[rows] + discount * running[:count]
        result[rows] = running
    for end, begin, behind in zip(
        (last_steps + 1 - num_together)[:FEW_EPISODES].tolist(),
        (last_steps + 1 - lengths)[:FEW_EPISODES].tolist(),
        running[:FEW_EPISODES].tolist(),
        strict=True,
    ):
        _scan_back(rewards[begin:end], result[begin:end], discount, behind)
    return result


def _scan_back(rewards: Array, out: Array, discount: float, behind: float) -> None:
    """Fill `out` with the returns-to-go of successive steps, `behind` being that of the step behind them."""
    for stop in range(len(rewards), 0, -SCAN_ROWS):
        start = max(0, stop - SCAN_ROWS)
        steps = reversed(rewards[start:stop].tolist())
        returns = list(accumulate(steps, lambda total, reward: reward + discount * total, initial=behind))
        out[start:stop] = np.array(returns[:0:-1])
        behind = returns[-1]


def n_step_rewards(
    rewards: Array, steps_left: npt.NDArray[np.int64], n_step: int, discount: float
) -> npt.NDArray[np.float64]:
    """Return Σ discount^i * r_{t+i} over i < min(n_step, steps left) for every row, 0 where no step is left.

    Args:
        rewards: (rows,), the steps of an episode one after another.
        steps_left: from this row to the last that counts in its episode, its own counted, (rows,).
        n_step: 1 or more.
        discount: between 0 and 1.

    Returns:
        (rows,); sums are taken in float64, the earliest reward first.
    """
    values = rewards.astype(np.float64)
    total = np.where(steps_left > 0, values, 0.0)
    for ahead in range(1, min(n_step, len(values))):
        total[:-ahead] += np.where(steps_left[:-ahead] > ahead, discount**ahead * values[ahead:], 0.0)
    return total
