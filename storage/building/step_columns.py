"""Many episodes in memory, one after another on one time axis: what a dataset of them holds, row by row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.episode import Episode, early_end
from dask_rl.storage.errors import InvalidDataError, explain
from dask_rl.storage.nested import unflatten
from dask_rl.storage.schema import (
    ACTIONS,
    INFOS_PREFIX,
    OBSERVATIONS,
    REWARDS,
    TERMINATIONS,
    TRUNCATIONS,
    is_part_of,
)

from .episode_axis import axis_columns

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
_SHORT_STEPS = 64
"""Where episodes are shorter, rows are placed by a mask: to copy each episode would take longer."""


@dataclass(frozen=True)
class StepColumns:
    """E episodes of N steps in all, without ids and seeds; nothing is copied.

    Raises:
        InvalidDataError: the lengths do not fit, an end is flagged before an episode's last step, or a flag is no bool.
    """

    columns: Mapping[str, Array]
    """By field: (N, …), parts of observations (N + E, …) with each episode's final one behind its others, or (N, …)
    without any."""
    lengths: IntArray  # (E,) steps, at least 1 each
    _observed: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Check the lengths and the flags."""
        object.__setattr__(self, "_observed", tuple(path for path in self.columns if is_part_of(path, OBSERVATIONS)))
        if not len(self.lengths) or int(np.min(self.lengths)) < 1:
            got = "no episodes" if not len(self.lengths) else "an episode of no steps"
            raise InvalidDataError(explain("lengths", got=got, allowed="at least 1 step each", fix="leave it out"))
        allowed = {path: {self.num_steps} for path in self.columns}
        allowed |= {path: {self.num_steps, self.num_rows} for path in self._observed}
        for path, column in self.columns.items():
            if len(column) not in allowed[path]:
                wanted = " or ".join(str(number) for number in sorted(allowed[path]))
                raise InvalidDataError(
                    explain(path, got=f"{len(column)} rows", allowed=wanted, fix="repair the source")
                )
        if len({len(self.columns[path]) for path in self._observed}) != 1:
            raise InvalidDataError(
                explain(OBSERVATIONS, got="parts of different lengths", allowed="one length", fix="repair the source")
            )
        for path in (TERMINATIONS, TRUNCATIONS):
            self._check_flags(path)

    def _check_flags(self, path: str) -> None:
        flags = self.columns[path]
        if flags.dtype != np.bool_ or flags.ndim != 1:
            got = f"{flags.dtype} of shape {flags.shape}"
            raise InvalidDataError(explain(path, got=got, allowed="one bool a step", fix="convert them"))
        early = np.setdiff1d(np.flatnonzero(flags), self.step_ends - 1, assume_unique=True)
        if len(early):
            episode = int(np.searchsorted(self.step_ends, early[0], side="right"))
            step = int(early[0]) - int(self.step_ends[episode] - self.lengths[episode])
            raise early_end(episode, step, int(self.lengths[episode]))

    @cached_property
    def step_ends(self) -> IntArray:
        """Exclusive ends of episodes in steps, (E,)."""
        return np.cumsum(self.lengths)

    @cached_property
    def row_ends(self) -> IntArray:
        """Exclusive ends of episodes in rows, final ones counted, (E,)."""
        return self.step_ends + np.arange(1, len(self.lengths) + 1)

    @property
    def num_episodes(self) -> int:
        """E."""
        return len(self.lengths)

    @cached_property
    def num_steps(self) -> int:
        """N."""
        return int(np.sum(self.lengths))

    @property
    def num_rows(self) -> int:
        """N + E."""
        return self.num_steps + self.num_episodes

    @property
    def has_final_observations(self) -> bool:
        """Whether each episode has its final observation."""
        return len(self.columns[self._observed[0]]) == self.num_rows

    def source_rows(self, path: str, start: int, stop: int) -> tuple[int, int]:
        """Return which rows of a column lie in the dataset's rows [start, stop)."""
        if is_part_of(path, OBSERVATIONS) and self.has_final_observations:
            return start, stop
        # As many final rows lie before a row as episodes end before it.
        first, last = np.searchsorted(self.row_ends, (start, stop), side="right")
        return start - int(first), stop - int(last)

    def stored_rows(self, path: str, start: int, stop: int, dtype: np.dtype[Any]) -> Array | None:
        """Return the dataset's rows [start, stop) of a column as a contiguous view; None where there is none."""
        source, source_stop = self.source_rows(path, start, stop)
        rows = self.columns[path][source:source_stop]
        return rows if len(rows) == stop - start and rows.dtype == dtype and rows.flags.c_contiguous else None

    def fill(self, path: str, start: int, stop: int, out: Array) -> None:
        """Write the dataset's rows [start, stop) of a column to `out`, (stop - start, …); types are cast.

        A final row repeats the last observation where there is no final one, and is 0 in other columns.
        """
        column = self.columns[path]
        source, source_stop = self.source_rows(path, start, stop)
        if source_stop - source == stop - start:
            out[:] = column[source:source_stop]
            return
        first, last = np.searchsorted(self.row_ends, (start, stop), side="right")
        finals = self.row_ends[first:last] - 1 - start
        is_observed, row = is_part_of(path, OBSERVATIONS), 0
        if len(finals) * _SHORT_STEPS > len(out):
            steps = np.ones(len(out), np.bool_)
            steps[finals] = False
            out[steps] = column[source:source_stop]
            out[finals] = column[source - 1 + finals - np.arange(len(finals))] if is_observed else 0
            return
        for final in finals.tolist():
            out[row:final] = column[source : source + final - row]
            source += final - row
            out[final] = column[source - 1] if is_observed else 0
            row = final + 1
        out[row:] = column[source:source_stop]

    def episode(self, number: int) -> Episode:
        """Return one episode, as views where it can be."""
        stop, length = int(self.step_ends[number]), int(self.lengths[number])
        steps = slice(stop - length, stop)
        observed = {}
        for path in self._observed:
            column = self.columns[path]
            if self.has_final_observations:
                observed[path] = column[steps.start + number : stop + number + 1]
            else:
                observed[path] = np.concatenate([column[steps], column[stop - 1 : stop]])
        cut = {path: column[steps] for path, column in self.columns.items() if path not in observed}
        return Episode(
            observations=unflatten(OBSERVATIONS, observed),
            actions=unflatten(ACTIONS, cut),
            rewards=cut[REWARDS],
            terminations=cut[TERMINATIONS],
            truncations=cut[TRUNCATIONS],
            infos={path.removeprefix(INFOS_PREFIX): it for path, it in cut.items() if path.startswith(INFOS_PREFIX)},
            has_final_observation=self.has_final_observations,
        )

    def axis_columns(self, first_episode: int) -> dict[str, Array]:
        """Return the columns on the episode axis by key, in the types of the files.

        Args:
            first_episode: number of the first one in its dataset; one without an id gets its number.
        """
        unknown = np.full(self.num_episodes, -1)
        has_final = np.full(self.num_episodes, self.has_final_observations)
        return axis_columns(self.row_ends, unknown, unknown, has_final, first_episode)
