"""Sources whose columns lie on one time axis, one row a step, and say elsewhere where the episodes end.

An importer gives a way to open the columns, which of them is what, and the cuts; the episodes are slices. Columns
are array-likes (of NumPy, HDF5, Zarr, npz): a shape, a dtype and slices of rows.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain
from dask_rl.storage.nested import unflatten

from .base import Array, RawEpisode, Source, as_flags, flags_at_end

_BLOCK_BYTES = 2**22
_SCAN_ROWS = 2**20
_CHECK = "check the source"


class Rows(Protocol):
    """A column: rows that can be sliced."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, …)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""

    def __getitem__(self, rows: slice, /) -> Any:
        """Return some rows as an array."""


Lookup = Callable[[str], Rows]
OpenColumns = Callable[[], AbstractContextManager[Lookup]]
"""Opens a source and gives its columns by name; picklable."""


@dataclass(frozen=True)
class Roles:
    """Which column is what. Nested values have a name for each path, such as `observations/pose`."""

    observations: Mapping[str, str]  # path -> column
    actions: Mapping[str, str]
    rewards: str | None = "rewards"
    """None: the source has none, all are 0."""
    next_observations: Mapping[str, str] = field(default_factory=dict)  # paths of observations -> column
    infos: Mapping[str, str] = field(default_factory=dict)  # name -> column
    final_rows: bool = False
    """The row after the last step of an episode holds its final observation."""


@dataclass(frozen=True)
class Cuts:
    """Where the episodes lie, each array (episodes,)."""

    starts: Array  # int64: row of the first step
    stops: Array  # int64: one after the row of the last step
    terminated: Array  # bool
    observation_starts: Array | None = None
    """Where observations have rows of their own; by default they share those of the steps."""

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.starts)

    @property
    def num_steps(self) -> int:
        """Steps of all episodes."""
        return int((self.stops - self.starts).sum())

    def select(self, wanted: Array) -> "Cuts":
        """Return some of the episodes, by a mask (episodes,)."""
        observation_starts = None if self.observation_starts is None else self.observation_starts[wanted]
        return Cuts(self.starts[wanted], self.stops[wanted], self.terminated[wanted], observation_starts)


def make_flat_source(
    rule: str, origin: str, open_columns: OpenColumns, roles: Roles, cuts: Cuts, **facts: Any
) -> Source:
    """Return the source over such columns; `facts` are further fields of it."""
    following = roles.next_observations.keys()
    if following and following != roles.observations.keys():
        got, allowed = (", ".join(sorted(names)) for names in (following, roles.observations))
        raise SourceFormatError(explain(f"{origin}: next observations", got=got, allowed=allowed, fix=_CHECK))
    if roles.rewards is None:
        rule += "; the source stores no rewards: all are 0"
    if not roles.final_rows and not roles.next_observations:
        rule += "; the source stores no final observations"
    return Source(
        rule=rule,
        episodes=partial(_read_episodes, origin, open_columns, roles, cuts),
        num_episodes=len(cuts),
        num_steps=cuts.num_steps,
        **facts,
    )


def _read_episodes(
    origin: str, open_columns: OpenColumns, roles: Roles, cuts: Cuts, start: int, stop: int | None
) -> Iterator[RawEpisode]:
    with open_columns() as lookup:
        columns = _Reader(lookup)
        for number in range(len(cuts))[start:stop]:
            yield _episode(origin, columns, roles, cuts, number)


def _episode(origin: str, columns: "_Reader", roles: Roles, cuts: Cuts, number: int) -> RawEpisode:
    start, stop = int(cuts.starts[number]), int(cuts.stops[number])
    first = start if cuts.observation_starts is None else int(cuts.observation_starts[number])
    after = first + stop - start + roles.final_rows
    observations = {path: columns.read(name, first, after) for path, name in roles.observations.items()}
    for path, name in roles.next_observations.items():
        last = columns.read(name, stop - 1, stop)
        if last.shape[1:] != observations[path].shape[1:]:
            got, allowed = f"rows of shape {last.shape[1:]}", f"{observations[path].shape[1:]}, as observations are"
            raise SourceFormatError(explain(f"{origin}: {name}", got=got, allowed=allowed, fix=_CHECK))
        observations[path] = np.concatenate([observations[path], last])
    terminated = bool(cuts.terminated[number])
    return RawEpisode(
        origin=origin,
        id=number,
        observations=unflatten("observations", observations),
        actions=unflatten("actions", {path: columns.read(name, start, stop) for path, name in roles.actions.items()}),
        rewards=np.zeros(stop - start, np.float32)
        if roles.rewards is None
        else columns.read(roles.rewards, start, stop),
        terminations=flags_at_end(stop - start, terminated),
        truncations=flags_at_end(stop - start, not terminated),
        infos={key: columns.read(name, start, stop) for key, name in roles.infos.items()},
        has_final_observation=roles.final_rows or bool(roles.next_observations),
    )


class _Reader:
    """Reads ranges of rows in blocks: many short episodes share one read. Arrays in memory are sliced."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._columns: dict[str, Rows] = {}
        self._blocks: dict[str, tuple[int, Array]] = {}  # first row and rows of the block read last

    def read(self, name: str, start: int, stop: int) -> Array:
        """Return rows [start, stop) of a column."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = self._lookup(name)
        if isinstance(column, np.ndarray):
            return column[start:stop]
        pieces = []
        at = start
        while at < stop:
            first, block = self._block(name, column, at)
            pieces.append(block[at - first : stop - first])
            at += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _block(self, name: str, column: Rows, row: int) -> tuple[int, Array]:
        """Return the block that holds a row, and its first row."""
        first, block = self._blocks.get(name, (0, np.empty(0)))
        if not first <= row < first + len(block):
            row_bytes = column.dtype.itemsize * math.prod(column.shape[1:])
            num_rows = max(1, _BLOCK_BYTES // max(1, row_bytes))
            first = row - row % num_rows
            block = np.asarray(column[first : first + num_rows])
            if not first <= row < first + len(block):  # the column got shorter since it was opened
                fix = "read the source when nobody writes to it"
                raise SourceFormatError(explain(name, got=f"no row {row}", allowed="the rows it had", fix=fix))
            self._blocks[name] = first, block
        return first, block


def check_columns(origin: str, columns: Mapping[str, Rows]) -> int:
    """Return the number of rows that all columns have.

    Raises:
        SourceFormatError: their lengths differ or are 0, or one holds no numbers.
    """
    lengths = {name: column.shape[0] if column.shape else 0 for name, column in columns.items()}
    if len(set(lengths.values())) != 1 or not min(lengths.values()):
        raise SourceFormatError(
            explain(origin, got=f"rows {lengths}", allowed="equal, at least 1", fix="fetch the file again")
        )
    for name, column in columns.items():
        if np.dtype(column.dtype).kind not in "biuf":
            got, fix = f"values of type {column.dtype}", "convert the source first"
            raise SourceFormatError(explain(f"{origin}: {name}", got=got, allowed="numbers", fix=fix))
    return next(iter(lengths.values()))


def read_flags(column: Rows, subject: str) -> Array:
    """Return which rows of a column are not 0, (rows,) bool, read piece by piece.

    Raises:
        SourceFormatError: it is no column of one flag a row, or one is missing; `subject` says where it lies.
    """
    if not column.shape:
        raise SourceFormatError(explain(subject, got="one value", allowed="a flag in each row", fix=_CHECK))
    num_rows = column.shape[0]
    flags = np.zeros(num_rows, dtype=bool)
    for first in range(0, num_rows, _SCAN_ROWS):
        piece = np.asarray(column[first : first + _SCAN_ROWS])
        flags[first : first + len(piece)] = as_flags(piece, subject, first)
    return flags


def cut_after(ends: Array) -> tuple[Array, Array]:
    """Return starts and exclusive stops of the pieces that end with the flagged rows, or with the last row."""
    stops = np.unique(np.append(np.flatnonzero(ends) + 1, len(ends))).astype(np.int64)
    return np.concatenate([[0], stops[:-1]]).astype(np.int64), stops
