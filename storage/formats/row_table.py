"""Tables of steps in parts, and the rows of one episode out of them."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain

from .base import Array, as_flags

FLAGS = ("dones", "terminateds", "truncateds")
_ONE_A_ROW = ("t", "action_logp", "action_prob")
_CACHE_BYTES = 2**27
_MAX_EPISODE_BYTES = 2**32


class Table(Protocol):
    """Rows in parts that can be read one at a time, in any order."""

    @property
    def names(self) -> frozenset[str]:
        """Columns that all parts have."""

    @property
    def all_names(self) -> frozenset[str]:
        """Columns that any part has."""

    @property
    def lacking(self) -> Mapping[str, str]:
        """Columns that some parts lack, and where the first of these parts lies."""

    @property
    def num_parts(self) -> int:
        """How many parts there are."""

    def origin(self, part: int) -> str:
        """Return where a part lies, for messages."""

    def read(self, part: int, columns: Sequence[str]) -> dict[str, Array]:
        """Return some columns of a part, each (rows, …)."""


class ColumnNames:
    """Which columns the parts of a table have."""

    def __init__(self) -> None:
        self.every: frozenset[str] = frozenset()
        self.lacking: dict[str, str] = {}
        self._first = ""

    def add(self, names: Iterable[str], origin: str, unusable: Iterable[str] = ()) -> None:
        """Take the next part into account; `unusable` are names whose values it has in no usable form."""
        found = frozenset(names)
        for name in self.every - found:
            self.lacking.setdefault(name, origin)
        for name in found - self.every if self._first else ():
            self.lacking.setdefault(name, self._first)
        for name in unusable:
            self.lacking.setdefault(name, origin)
        self._first = self._first or origin
        self.every |= found | frozenset(unusable)

    @property
    def common(self) -> frozenset[str]:
        """Those of all parts."""
        return self.every - self.lacking.keys()


class PartCache:
    """The parts read last, up to a number of bytes: an episode often goes on in the next part."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._table = table
        self._columns = columns
        self._parts: OrderedDict[int, dict[str, Array]] = OrderedDict()

    def gather(self, runs: Array) -> dict[str, Array]:
        """Return the rows of runs (part, start, stop), one array a column; flags as (rows,) bool.

        Raises:
            SourceFormatError: columns do not fit each other, a flag or step number is missing, or the rows are too
                many for one episode.
        """
        pieces: list[dict[str, Array]] = []
        num_rows = int((runs[:, 2] - runs[:, 1]).sum())
        for of_part in np.split(runs, np.flatnonzero(np.diff(runs[:, 0])) + 1):
            part = int(of_part[0, 0])
            columns = self._get(part)
            self._check_fits(num_rows, columns, part)
            wanted = slice(*of_part[0, 1:].tolist()) if len(of_part) == 1 else _rows_of(of_part)
            pieces.append({name: column[wanted] for name, column in columns.items()})
        for name in self._columns:
            found = {piece[name].shape[1:] for piece in pieces}
            if len(found) > 1:
                origin = self._table.origin(int(runs[0, 0]))
                got = f"rows of shapes {sorted(found)} in one episode"
                fix = "repair the source"
                raise SourceFormatError(explain(f"{origin}: column '{name}'", got=got, allowed="one shape", fix=fix))
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in self._columns}

    def _check_fits(self, num_rows: int, columns: Mapping[str, Array], part: int) -> None:
        row_bytes = sum(column.nbytes // max(len(column), 1) for column in columns.values())
        if num_rows * row_bytes > _MAX_EPISODE_BYTES:
            got = f"{num_rows} rows of {row_bytes} bytes with one eps_id, which would be in memory together"
            allowed, fix = f"at most {_MAX_EPISODE_BYTES} bytes", "give each episode an eps_id of its own"
            raise SourceFormatError(explain(self._table.origin(part), got=got, allowed=allowed, fix=fix))

    def _get(self, part: int) -> dict[str, Array]:
        if part in self._parts:
            self._parts.move_to_end(part)
            return self._parts[part]
        read = self._table.read(part, self._columns)
        self._parts[part] = _checked(read, self._table.origin(part))
        size = sum(column.nbytes for columns in self._parts.values() for column in columns.values())
        while size > _CACHE_BYTES and len(self._parts) > 1:
            _, oldest = self._parts.popitem(last=False)
            size -= sum(column.nbytes for column in oldest.values())
        return self._parts[part]


def _rows_of(runs: Array) -> Array:
    """Return the row numbers of the runs of a part."""
    lengths = runs[:, 2] - runs[:, 1]
    ends = np.cumsum(lengths)
    rows: Array = np.repeat(runs[:, 1] - (ends - lengths), lengths) + np.arange(ends[-1])
    return rows


def _checked(read: Mapping[str, Array], origin: str) -> dict[str, Array]:
    """Return the columns of a part, flags as (rows,) bool, once all fit each other."""
    check_lengths(read, origin)
    columns = dict(read)
    for name, column in read.items():
        subject = f"{origin}, column '{name}'"
        if name in FLAGS:
            columns[name] = as_flags(column, subject)
        elif name in _ONE_A_ROW:
            columns[name] = one_a_row(column, subject)
    if "t" in columns and not (finite := np.isfinite(columns["t"])).all():
        got, fix = f"no number in row {int(np.argmin(finite))}", "fill it in"
        raise SourceFormatError(explain(f"{origin}, column 't'", got=got, allowed="the number of the step", fix=fix))
    if "new_obs" in read and "obs" in read and read["new_obs"].shape != read["obs"].shape:
        got, allowed = f"shape {read['new_obs'].shape}", f"that of obs, {read['obs'].shape}"
        fix = "repair the source"
        raise SourceFormatError(explain(f"{origin}, column 'new_obs'", got=got, allowed=allowed, fix=fix))
    return columns


def one_a_row(column: Array, subject: str) -> Array:
    """Return a column as (rows,).

    Raises:
        SourceFormatError: it holds another number of values.
    """
    if column.size != len(column):
        name, fix = f"a column of shape {column.shape}", "check the source"
        raise SourceFormatError(explain(subject, got=name, allowed=f"{len(column)} numbers, one a row", fix=fix))
    return column.reshape(-1)


def check_lengths(read: Mapping[str, Array], origin: str) -> None:
    """Check that columns have the same number of rows.

    Raises:
        SourceFormatError: they do not.
    """
    lengths = {name: len(column) for name, column in read.items()}
    if len(set(lengths.values())) != 1:
        fix = "repair the source"
        raise SourceFormatError(explain(origin, got=f"columns of {lengths} rows", allowed="one length", fix=fix))
