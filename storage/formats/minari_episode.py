"""What Minari's storages have in common: where the episodes are, and what makes one."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from dask_rl.storage.nested import Columns, flatten, map_columns

from .base import Array, RawEpisode, as_flags, flags_at_end

_MAX_INT64 = np.iinfo(np.int64).max


@dataclass(frozen=True)
class EpisodeTable:
    """The episodes of a storage."""

    origin: str
    """The file or folder, for messages."""
    numbers: list[int]
    """In order."""
    read: Callable[[list[int]], Iterator[RawEpisode]]
    """Reads some of them; picklable."""
    left_out: tuple[str, ...]
    """Infos that the dataset does not get."""
    notes: tuple[str, ...] = ()


def make_episode(
    origin: str,
    number: int,
    observations: Columns,
    actions: Columns,
    flags: Mapping[str, Array],
    infos: Mapping[str, Array],
    metadata: Mapping[str, Any],
) -> RawEpisode:
    """Return the episode; one that ends without a flag is truncated.

    Args:
        origin: the file, for messages.
        number: of the episode.
        observations: (T+1, …).
        actions: (T, …).
        flags: rewards, terminations, truncations, each (T,).
        infos: each (T, …).
        metadata: the seed, if it is a number; an exported dataset also keeps the episode's number in its own source,
            and whether the final observation is real.
    """
    num_steps = len(flags["rewards"])
    seed, episode_id = metadata.get("seed"), metadata.get("episode_id")
    has_final_observation = any(len(rows) != num_steps for rows in flatten("observations", observations).values())
    if has_final_observation and not metadata.get("has_final_observation", True):
        observations, has_final_observation = map_columns(lambda rows: rows[:num_steps], observations), False
    terminations, truncations = (
        as_flags(flags[key], f"{origin}: episode {number}: {key}") for key in ("terminations", "truncations")
    )
    if len(terminations) == len(truncations) == num_steps and not (terminations | truncations).any():
        truncations = flags_at_end(num_steps, True)
    return RawEpisode(
        origin=origin,
        id=int(episode_id) if _is_number(episode_id) else number,
        observations=observations,
        actions=actions,
        rewards=flags["rewards"],
        terminations=terminations,
        truncations=truncations,
        infos=infos,
        has_final_observation=has_final_observation,
        seed=int(seed) if _is_number(seed) else None,
    )


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and 0 <= int(value) <= _MAX_INT64
