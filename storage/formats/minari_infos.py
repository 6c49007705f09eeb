"""The infos of Minari's episodes: which of them every episode has as numbers, and those that are stored as JSON. Pure.

Minari wrote them as arrays by name until 0.5, and writes them as one JSON object a row since.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain
from dask_rl.storage.schema import INFO_NAME

from .base import Array


class Info(NamedTuple):
    """What one episode has under a name."""

    row_shape: tuple[int, ...]
    dtype: str
    usable: bool
    """Whether it holds numbers, one or more a row."""


def common_infos(episodes: Iterable[Mapping[str, Info]]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names of infos that all episodes have, in one shape and type, and of those that are left out."""
    kept: dict[str, Info] | None = None
    seen: set[str] = set()
    for infos in episodes:
        seen |= infos.keys()
        kept = dict(infos) if kept is None else {name: info for name, info in kept.items() if infos.get(name) == info}
    names = frozenset(name for name, info in (kept or {}).items() if info.usable and INFO_NAME.fullmatch(name))
    return names, tuple(sorted(f"infos/{name}" for name in seen - names))


def describe(column: Array | None) -> Info:
    """Return what a column of an episode, (rows, …), is; None: no numbers."""
    if column is None:
        return Info((), "O", False)
    return Info(column.shape[1:], column.dtype.str, column.dtype.kind in "biuf" and 0 not in column.shape[1:])


def last_rows(column: Array, num_steps: int) -> Array:
    """Return (T, …): of T+1 rows the first came from the reset, row t+1 belongs to step t."""
    return column[max(0, len(column) - num_steps) :]


def from_json(texts: Sequence[str | bytes], num_steps: int, origin: str) -> dict[str, Array | None]:
    """Return infos by name, each (T, …); None: not a number, or numbers of one shape, at every step.

    JSON knows no types: numbers become float64, true and false stay. Names of nested ones are joined by dots.

    Raises:
        SourceFormatError: a row is no JSON object.
    """
    rows = [_flat(_object(text, origin)) for text in texts[max(0, len(texts) - num_steps) :]]
    names = sorted(set().union(*rows))
    return {name: _column([row[name] for row in rows]) if all(name in row for row in rows) else None for name in names}


def _object(text: str | bytes, origin: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError, TypeError) as error:
        raise SourceFormatError(
            explain(f"{origin}: infos", got=f"unreadable JSON ({error})", allowed="an object", fix="fetch it again")
        ) from error
    return value if isinstance(value, dict) else {}


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            found |= _flat(item, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = item
    return found


def _column(values: Sequence[Any]) -> Array | None:
    try:
        column = np.asarray(values)
    except (ValueError, OverflowError):  # of different lengths
        return None
    if column.dtype.kind not in "biuf" or 0 in column.shape:
        return None
    return column if column.dtype.kind == "b" else column.astype(np.float64)
