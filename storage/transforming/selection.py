"""Which episodes are kept, why the others are not, and which of them are for validation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.errors import ConfigError, explain

from .config import TransformConfig

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Selection:
    """The episodes that are kept."""

    kept: Mask  # (num_episodes,)
    dropped: Mapping[str, int]
    """The others by the first reason, in the order in which they are looked at."""


def needed_facts(config: TransformConfig) -> frozenset[str]:
    """Return the names of the facts that the choice depends on."""
    names = frozenset() if config.condition is None else config.condition.names
    by_return = (config.min_return, config.max_return, config.top_fraction)
    return names | {"return_"} if any(value is not None for value in by_return) else names


def select(facts: Mapping[str, npt.NDArray[Any]], config: TransformConfig) -> Selection:
    """Choose episodes.

    Args:
        facts: columns by name, (num_episodes,).
        config: what the user wants.

    Raises:
        ConfigError: none is left, or the condition cannot be worked out.
    """
    kept = np.ones(len(facts["length"]), np.bool_)
    dropped: dict[str, int] = {}

    def keep(good: Mask, reason: str) -> None:
        lost = int((kept & ~good).sum())
        if lost:
            dropped[reason] = lost
        np.logical_and(kept, good, out=kept)

    for kind, name in (("return", "return_"), ("length", "length")):
        if (low := getattr(config, f"min_{kind}")) is not None:
            keep(facts[name] >= low, f"{kind} below {low}")
        if (high := getattr(config, f"max_{kind}")) is not None:
            keep(facts[name] <= high, f"{kind} above {high}")
    if config.condition is not None:
        keep(config.condition.holds(facts), f"not {config.where}")
    if config.top_fraction is not None and kept.any():
        keep(_top(facts["return_"], kept, config.top_fraction), f"not in the top {config.top_fraction:g} by return")
    if not kept.any():
        got = ", ".join(f"{count} dropped: {reason}" for reason, count in dropped.items())
        raise ConfigError(explain("episodes", got=got, allowed="at least 1 that is kept", fix="loosen the filters"))
    return Selection(kept, dropped)


def split(kept: Mask, fraction: float, seed: int) -> tuple[Mask, Mask]:
    """Return the episodes for training and those for validation, both in their order.

    Raises:
        ConfigError: there is only one episode.
    """
    numbers = np.flatnonzero(kept)
    if len(numbers) < 2:
        raise ConfigError(
            explain("validation_fraction", got="1 episode", allowed="at least 2 to split", fix="leave it out")
        )
    count = min(max(round(fraction * len(numbers)), 1), len(numbers) - 1)
    # Raw bits of a generator never change between versions of numpy; its permutations may.
    order = np.argsort(np.random.Philox(key=seed).random_raw(len(numbers)), kind="stable")
    validation = np.zeros_like(kept)
    validation[numbers[order[:count]]] = True
    return kept & ~validation, validation


def _top(returns: npt.NDArray[np.float64], kept: Mask, fraction: float) -> Mask:
    numbers = np.flatnonzero(kept)
    order = np.argsort(-returns[numbers], kind="stable")
    top = np.zeros_like(kept)
    top[numbers[order[: max(round(fraction * len(numbers)), 1)]]] = True
    return top
