"""Episodes in data frames of pandas, pyarrow or dask: one row a step, in partitions that may be in any order."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.storage.errors import ConfigError, SourceFormatError, explain

from .arrow_columns import to_array
from .base import Array, ImportOptions, ImportSummary, Space, as_flags
from .driver import Progress, import_source
from .rllib_rows import make_source
from .row_table import FLAGS

_PART_ROWS = 2**16
_COMPLETE = (*FLAGS, "eps_id", "t")  # roles whose columns miss no value
Names = str | Sequence[str]
"""One column, of numbers or of lists or arrays of one shape, or several of numbers that together are a vector."""


@dataclass(frozen=True)
class _FrameTable:
    """A `Table` (see rllib_rows) whose parts are ranges of rows, or the partitions of a dask frame."""

    frame: Any
    roles: Mapping[str, Names]  # name in rllib_rows -> columns of the frame
    starts: tuple[int, ...]  # first row of each part; of a dask frame the partitions' numbers
    first_ids: tuple[int, ...] | None
    """Where no column numbers the episodes: how many ended before each part."""

    @property
    def names(self) -> frozenset[str]:
        """What there is for every row."""
        return frozenset(self.roles) | {"eps_id"}

    @property
    def all_names(self) -> frozenset[str]:
        """The same."""
        return self.names

    @property
    def lacking(self) -> Mapping[str, str]:
        """Nothing: all parts have the same columns."""
        return {}

    @property
    def num_parts(self) -> int:
        """Partitions, or ranges of rows."""
        return len(self.starts)

    def origin(self, part: int) -> str:
        """Return where a part is, for messages."""
        return f"frame, partition {part}" if _is_dask(self.frame) else f"frame, from row {self.starts[part]}"

    def read(self, part: int, columns: Sequence[str]) -> dict[str, Array]:
        """Return some columns of a part, each (rows, …).

        Raises:
            SourceFormatError: a column holds something else than numbers or arrays of one shape.
        """
        flags = [name for name in ("terminateds", "truncateds") if name in self.roles]
        numbered = self.first_ids is not None and "eps_id" in columns
        wanted = [*(name for name in columns if name in self.roles), *(flags if numbered else [])]
        found = _read_part(
            self.frame, self.starts[part], {name: self.roles[name] for name in wanted}, self.origin(part)
        )
        if numbered and self.first_ids is not None:
            ended = _ended({name: found[name] for name in flags}, self.origin(part))
            found["eps_id"] = self.first_ids[part] + np.concatenate([[0], np.cumsum(ended)[:-1]]).astype(np.int64)
        return {name: found[name] for name in columns}


def import_frame(
    dest: str | os.PathLike[str],
    frame: Any,
    *,
    observations: Names = "observations",
    actions: Names = "actions",
    rewards: str = "rewards",
    terminations: str | None = None,
    truncations: str | None = None,
    episode: str | None = None,
    step: str | None = None,
    next_observations: Names | None = None,
    infos: Sequence[str] = (),
    observation_space: Space | None = None,
    action_space: Space | None = None,
    options: ImportOptions | None = None,
    overwrite: bool = False,
    append: bool = False,
    progress: Progress | None = None,
) -> ImportSummary:
    """Write a data frame with one row a step as a dataset, with the checks of an import.

    Rows with the same value of `episode` are one episode, ordered by `step` if it is given, else by which observation
    follows which if `next_observations` are given, else as they come. Without `episode`, rows are taken in their order
    and an episode ends where `terminations` or `truncations` is set. An end without a termination is a truncation.

    Args:
        dest: the new dataset, such as `mine.zarr`.
        frame: a pandas or dask DataFrame, or a pyarrow Table. Of a dask frame one partition is in memory at a time.
        observations: a column of lists or arrays, or several columns of numbers.
        actions: as well; one column of whole numbers is discrete.
        rewards: a column.
        terminations: a column: the environment ended the episode.
        truncations: a column: the episode was cut off.
        episode: a column that tells the episodes apart: numbers or text.
        step: a column of step numbers.
        next_observations: what followed each step; only the last of each episode is stored.
        infos: columns to be kept as infos.
        observation_space: by default inferred, or that of the environment which the options name.
        action_space: as well.
        options: what else is known, such as a time limit.
        overwrite: replace a dataset at `dest`.
        append: add the episodes to the dataset at `dest`.
        progress: called with the number of steps read and their total.

    Raises:
        ConfigError: this is no such frame, a column is missing, or nothing tells the episodes apart.
        SourceFormatError: a column holds something else than numbers or arrays of one shape.
        InvalidDataError: values that no learner may see; naming episode, step and field.
        DatasetError: `dest` exists or cannot be written.
    """
    roles: dict[str, Names | None] = {
        **{"eps_id": episode, "obs": observations, "new_obs": next_observations, "actions": actions},
        **{"rewards": rewards, "terminateds": terminations, "truncateds": truncations, "t": step},
        **{f"infos/{name}": name for name in infos},
    }
    table = _make_table(frame, {name: columns for name, columns in roles.items() if columns is not None})
    source = make_source(table, "frame", infos, observation_space, action_space, in_order=episode is None)
    flags = " and ".join(name for name in (terminations, truncations) if name is not None)
    order = step or ("which observation follows which" if next_observations and episode else "the frame")
    rule = (
        f"episodes split by {' and '.join(filter(None, (episode, flags)))}, rows in the order of {order}; "
        + (
            f"terminated where {terminations} is set, truncated otherwise"
            if terminations
            else "every end is a truncation"
        )
        + ("" if next_observations else "; the source stores no final observations")
    )
    return import_source(
        replace(source, rule=rule),
        os.fspath(dest),
        name="frame",
        label="frame",
        options=options or ImportOptions(),
        overwrite=overwrite,
        append=append,
        progress=progress,
    )


def _make_table(frame: Any, roles: Mapping[str, Names]) -> _FrameTable:
    if type(frame).__name__ not in ("DataFrame", "Table") or not hasattr(frame, "columns"):
        got, allowed = type(frame).__name__, "a pandas or dask DataFrame, or a pyarrow Table"
        raise ConfigError(explain("frame", got=got, allowed=allowed, fix="convert it"))
    there = list(frame.column_names if _is_arrow(frame) else frame.columns)
    named = {name for names in roles.values() for name in _listed(names)}
    listing = ", ".join(sorted(map(str, there)))
    for problem, names in (("no", named - {*there}), ("several", {name for name in named if there.count(name) > 1})):
        if names:
            got = f"{problem} column {', '.join(sorted(map(str, names)))}"
            raise ConfigError(explain("frame", got=got, allowed=listing, fix="name the columns that it has, once"))
    if not all(_listed(names) for names in roles.values()):
        raise ConfigError(explain("frame", got="an empty list of columns", allowed=listing, fix="name some"))
    starts = range(frame.npartitions) if _is_dask(frame) else range(0, max(len(frame), 1), _PART_ROWS)
    if "eps_id" in roles:
        return _FrameTable(frame, roles, tuple(starts), None)
    flags = {name: roles[name] for name in ("terminateds", "truncateds") if name in roles}
    if not flags:
        allowed = "episode, terminations or truncations"
        raise ConfigError(explain("frame", got="no ends of episodes", allowed=allowed, fix="name a column of these"))
    first_ids = [0]
    for start in starts:
        ended = _read_part(frame, start, flags, "frame")
        first_ids.append(first_ids[-1] + int(_ended(ended, "frame").sum()))
    return _FrameTable(frame, roles, tuple(starts), tuple(first_ids[:-1]))


def _read_part(frame: Any, start: int, roles: Mapping[str, Names], origin: str) -> dict[str, Array]:
    names = list(dict.fromkeys(name for columns in roles.values() for name in _listed(columns)))
    if _is_dask(frame):
        part = frame.get_partition(start)[names].compute()
    else:
        part = frame.select(names).slice(start, _PART_ROWS) if _is_arrow(frame) else frame[names]
        part = part if _is_arrow(frame) else part.iloc[start : start + _PART_ROWS]
    read = {name: _column(part[name], origin, name) for name in names}
    found = {}
    for role, columns in roles.items():
        for name in _listed(columns):
            if read[name].dtype.kind not in "biuf" and role != "eps_id":
                got, allowed = f"values of type {read[name].dtype}", "numbers, or arrays of one shape"
                raise _unusable(origin, name, got, allowed, "convert them first")
            if role in _COMPLETE and read[name].dtype.kind == "f" and (missing := np.isnan(read[name])).any():
                got = f"no value in row {int(np.argwhere(missing)[0][0])}"
                raise _unusable(origin, name, got, "a value in each row", "fill them in")
            if read[name].ndim != 1 and not isinstance(columns, str):
                got = f"arrays of shape {read[name].shape[1:]}"
                raise _unusable(origin, name, got, "numbers, where several columns are named", "name it alone")
        found[role] = read[columns] if isinstance(columns, str) else np.stack([read[c] for c in columns], axis=1)
    return found


def _ended(flags: Mapping[str, Array], origin: str) -> Array:
    """Return the rows at which an episode ends, (rows,) bool."""
    return np.logical_or.reduce([as_flags(column, f"{origin}, {name}") for name, column in flags.items()])


def _column(column: Any, origin: str, name: str) -> Array:
    if hasattr(column, "chunks") and "string" not in str(column.type):
        return to_array(Path(origin), name, column)
    values: Array = np.asarray(column.to_numpy())
    if values.dtype.kind != "O":
        return values
    if all(isinstance(value, str) for value in values):  # of episodes
        return values.astype(str)
    try:
        stacked = np.stack([np.asarray(value) for value in values]) if len(values) else values.astype(np.float64)
    except ValueError as error:
        got, allowed = "rows of different lengths", "numbers, or arrays of one shape"
        raise _unusable(origin, name, got, allowed, "pad them") from error
    if stacked.dtype.kind not in "biuf":
        got, fix = f"values of type {stacked.dtype}", "convert them first; fill missing ones"
        raise _unusable(origin, name, got, "numbers, or arrays of one shape", fix)
    return stacked


def _unusable(origin: str, name: str, got: str, allowed: str, fix: str) -> SourceFormatError:
    return SourceFormatError(explain(f"{origin}: column '{name}'", got=got, allowed=allowed, fix=fix))


def _listed(names: Names) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _is_arrow(frame: Any) -> bool:
    return hasattr(frame, "column_names")


def _is_dask(frame: Any) -> bool:
    return hasattr(frame, "npartitions")
