"""One episode in memory: T steps, T+1 observations."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidDataError, explain
from .nested import Columns, flatten, map_columns
from .schema import ACTIONS, INFOS_PREFIX, OBSERVATIONS, REWARDS, TERMINATIONS, TRUNCATIONS

Array = npt.NDArray[Any]
_MAX_INT64 = 2**63 - 1


@dataclass(frozen=True)
class Episode:
    """One episode of T ≥ 1 steps.

    Observations and actions of a Dict space are mappings of arrays by its keys, those of a Tuple space by "0", "1", ….
    Where the source has no final observation, the last row of `observations` repeats the one before it and
    `has_final_observation` is False: it is finite, and never delivered as real.

    Raises:
        InvalidDataError: the lengths do not fit, T is 0, an end is flagged before the last step, or id or seed are
            no numbers of 63 bits.
    """

    observations: Columns  # (T+1, *obs_shape), or such arrays by key
    actions: Columns  # (T, *action_shape), or such arrays by key
    rewards: Array  # (T,) float
    terminations: Array  # (T,) bool: the environment ended; no bootstrap
    truncations: Array  # (T,) bool: cut off; bootstrap from the final observation
    infos: Mapping[str, Array] = field(default_factory=dict)  # each (T, …), e.g. behavior_logp
    has_final_observation: bool = True
    id: int = -1  # -1: unknown
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the lengths, the flags and the numbers that identify it."""
        length = len(self.rewards)
        if length == 0:
            raise InvalidDataError(explain("episode", got="0 steps", allowed="at least 1", fix="drop it"))
        for name, column in self.columns().items():
            is_observation = name.partition("/")[0] == OBSERVATIONS
            self._check_rows(name, column, length + is_observation)
        if self.terminations[:-1].any() or self.truncations[:-1].any():
            step = int(np.flatnonzero(self.terminations[:-1] | self.truncations[:-1])[0])
            raise early_end(self.id, step, length)
        for name, number, lowest in (("id", self.id, -1), ("seed", self.seed, 0)):
            if number is not None and not lowest <= number <= _MAX_INT64:
                raise InvalidDataError(
                    explain(
                        f"episode {self.id}: {name}", got=number, allowed=f"{lowest} to {_MAX_INT64}", fix="change it"
                    )
                )

    def _check_rows(self, name: str, column: Array, wanted: int) -> None:
        got = f"{len(column)} rows" if column.ndim else "one value"
        if not column.ndim or len(column) != wanted:
            raise InvalidDataError(
                explain(f"episode {self.id}: {name}", got=got, allowed=wanted, fix="repair the source")
            )

    def columns(self) -> dict[str, Array]:
        """Return all arrays by field, such as `observations` or, of a nested one, `observations/pose/0`; no copies."""
        return {
            **flatten(OBSERVATIONS, self.observations),
            **flatten(ACTIONS, self.actions),
            REWARDS: np.asarray(self.rewards),
            TERMINATIONS: np.asarray(self.terminations),
            TRUNCATIONS: np.asarray(self.truncations),
            **{INFOS_PREFIX + name: np.asarray(column) for name, column in self.infos.items()},
        }

    def __len__(self) -> int:
        """Return the number of steps T."""
        return len(self.rewards)

    def part(self, start: int, stop: int) -> "Episode":
        """Return steps `start` to `stop`, exclusive, as an episode of the same id (views, no copies).

        Before the episode's end it is neither terminated nor truncated, and its final observation is the real one.
        """
        return replace(
            self,
            observations=map_columns(lambda column: column[start : stop + 1], self.observations),
            actions=map_columns(lambda column: column[start:stop], self.actions),
            rewards=self.rewards[start:stop],
            terminations=self.terminations[start:stop],
            truncations=self.truncations[start:stop],
            infos={name: values[start:stop] for name, values in self.infos.items()},
            has_final_observation=self.has_final_observation or stop < len(self),
        )

    @property
    def terminated(self) -> bool:
        """Whether the environment ended the episode."""
        return bool(self.terminations[-1])

    @property
    def truncated(self) -> bool:
        """Whether the episode was cut off."""
        return bool(self.truncations[-1])

    @property
    def return_(self) -> float:
        """The undiscounted sum of rewards."""
        return float(np.sum(self.rewards, dtype=np.float64))


def early_end(episode: int, step: int, length: int) -> InvalidDataError:
    """Return the error for an episode of `length` steps that is flagged to end at an earlier one."""
    got, allowed = f"an end flagged at step {step} of {length}", "ends at the last step only"
    return InvalidDataError(explain(f"episode {episode}", got=got, allowed=allowed, fix="split the episode there"))
