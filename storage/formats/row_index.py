"""Where the rows of each episode lie in a table whose parts may be in any order."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain

from .base import Array
from .row_table import Table, check_lengths, one_a_row

_Key = tuple[int | float | bool | str, ...]
_MAX_ID = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Index:
    """Where the rows of each group lie, those that share an id. A group holds one episode or more."""

    ids: Array  # (groups,) int64: the source's number of the episode
    runs: Array  # (runs, 3) int64: part, start, stop of consecutive rows, in stored order
    run_ends: Array  # (groups,) int64: exclusive end of a group's runs
    ordered_by: tuple[str, ...]
    """The columns that put a group's rows in order; none: they are."""
    episode_ends: Array  # (groups,) int64: exclusive end of a group's episodes

    def runs_of(self, group: int) -> Array:
        """Return a group's runs, (n, 3)."""
        return self.runs[self.run_ends[group - 1] if group else 0 : self.run_ends[group]]


def group_rows(table: Table, keys: Sequence[str], ordered_by: tuple[str, ...]) -> Index:
    """Return where rows with the same values of the keys lie, in order of appearance; the episodes are not yet known.

    Raises:
        SourceFormatError: a key is missing in a row, or is no single value.
    """
    numbers: dict[_Key, int] = {}
    found = [np.empty((0, 4), np.int64)]  # group, part, start, stop
    for part in range(table.num_parts):
        columns = _read_keys(table, part, keys)
        num_rows = len(columns[0])
        if not num_rows:
            continue
        changed = np.arange(num_rows) == 0
        for column in columns:
            changed[1:] |= column[1:] != column[:-1]
        starts = np.flatnonzero(changed)
        groups = _number(numbers, [column[starts] for column in columns])
        found.append(np.stack([groups, np.full(len(starts), part), starts, np.append(starts[1:], num_rows)], axis=1))
    runs = np.concatenate(found)
    ids = [key[0] if isinstance(key[0], int) and 0 <= key[0] <= _MAX_ID else number for key, number in numbers.items()]
    return Index(
        ids=np.array(ids, np.int64),
        runs=runs[np.argsort(runs[:, 0], kind="stable"), 1:],
        run_ends=np.cumsum(np.bincount(runs[:, 0], minlength=len(ids)), dtype=np.int64),
        ordered_by=ordered_by,
        episode_ends=np.empty(0, np.int64),
    )


def _number(numbers: dict[_Key, int], columns: Sequence[Array]) -> Array:
    """Return the number of each key, (runs,); new ones are numbered in order of appearance."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        distinct, inverse = np.unique(column, return_inverse=True)
        codes = codes * len(distinct) + inverse
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    groups = np.empty(len(first), np.int64)
    for at in np.argsort(first):
        key = tuple(column[first[at]].item() for column in columns)
        groups[at] = numbers.setdefault(key, len(numbers))
    return groups[inverse]


def _read_keys(table: Table, part: int, keys: Sequence[str]) -> list[Array]:
    read = table.read(part, keys)
    check_lengths(read, table.origin(part))
    columns = []
    for name, column in read.items():
        subject = f"{table.origin(part)}, column '{name}'"
        columns.append(one_a_row(column, subject))
        # Not a number equals nothing: each such row would be an episode of its own.
        missing = columns[-1] != columns[-1]
        if missing.any():
            got = f"no value in row {int(np.argmax(missing))}"
            raise SourceFormatError(explain(subject, got=got, allowed="an id in each row", fix="fill them in"))
    return columns
