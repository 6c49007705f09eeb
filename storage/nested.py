"""Nested values: a Dict or Tuple space's elements as columns by key, and as flat columns by path.

A Dict is a mapping by its keys, a Tuple a mapping by "0", "1", …; the path of a part joins the keys that lead to it,
such as `observations/pose/0`. What is not nested is its only column, under the name alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from .errors import InvalidDataError, explain
from .schema import INFO_NAME, METADATA_NAME
from .spaces import Space, describe_space

Array = npt.NDArray[Any]
Columns = Array | Mapping[str, "Columns"]
"""The rows of one array or, for a Dict or Tuple space, those of its parts by key."""


def flatten(prefix: str, value: Columns) -> dict[str, Array]:
    """Return the parts of a nested value by path; no copies.

    Args:
        prefix: the name of the whole, such as `observations`.
        value: rows, or mappings of them.

    Raises:
        InvalidDataError: a mapping is empty, or has a key that can be no part of a path.
    """
    if not isinstance(value, Mapping):
        return {prefix: np.asarray(value)}
    _check_keys(prefix, value)
    return {path: leaf for key, part in value.items() for path, leaf in flatten(f"{prefix}/{key}", part).items()}


def unflatten(prefix: str, columns: Mapping[str, Array]) -> Columns:
    """Return what `flatten` was given; columns of other names are passed over.

    Raises:
        InvalidDataError: there is no such column, or one is the whole and another one its part.
    """
    if prefix in columns and not any(path.startswith(f"{prefix}/") for path in columns):
        return columns[prefix]
    parts = {path[len(prefix) + 1 :]: column for path, column in columns.items() if path.startswith(f"{prefix}/")}
    if prefix in columns or not parts:
        got = f"both it and {sorted(parts)}" if parts else "no such column"
        raise InvalidDataError(explain(prefix, got=got, allowed="one array, or its parts", fix="repair the source"))
    keys = dict.fromkeys(path.partition("/")[0] for path in parts)
    return {key: unflatten(key, _under(key, parts)) for key in keys}


def _under(key: str, columns: Mapping[str, Array]) -> dict[str, Array]:
    return {path: column for path, column in columns.items() if path == key or path.startswith(f"{key}/")}


def flatten_space(prefix: str, space: Space) -> dict[str, Space]:
    """Return the spaces of the parts by path; a space that is not composite is its only part.

    Raises:
        InvalidDataError: a Dict or Tuple is empty, or has a key that can be no part of a path.
    """
    parts = subspaces(space)
    if parts is None:
        return {prefix: space}
    _check_keys(prefix, parts)
    return {path: leaf for key, part in parts.items() for path, leaf in flatten_space(f"{prefix}/{key}", part).items()}


def subspaces(space: Space) -> dict[str, Space] | None:
    """Return the parts of a Dict by key, of a Tuple by number; None for other spaces."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    if isinstance(space, spaces.Tuple):
        return {str(number): part for number, part in enumerate(space.spaces)}
    return None


def is_nested(space: Space) -> bool:
    """Tell whether elements of a space are mappings or tuples."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def map_columns(function: Callable[[Array], Array], value: Columns) -> Columns:
    """Return a nested value with `function` applied to every array."""
    if isinstance(value, Mapping):
        return {key: map_columns(function, part) for key, part in value.items()}
    return function(value)


def parts_of(prefix: str, space: Space, value: Any) -> dict[str, Array]:
    """Return an element of a space, or many of them, as Gymnasium gives them, by path.

    Args:
        prefix: the name of the whole, such as `observations`.
        space: whose parts are looked for; others are passed over.
        value: an array or a number; of a Dict a mapping; of a Tuple a tuple, or a mapping by "0", "1", ….

    Raises:
        InvalidDataError: it lacks a part.
    """
    parts = subspaces(space)
    if parts is None:
        return {prefix: np.asarray(value)}
    found: dict[str, Array] = {}
    by_key = dict(value) if isinstance(value, Mapping) else {}
    if isinstance(value, tuple | list) and isinstance(space, spaces.Tuple):
        by_key = {str(number): part for number, part in enumerate(value)}
    for key, part in parts.items():
        if key not in by_key:
            got = f"{type(value).__name__} without part {key!r}"
            raise InvalidDataError(explain(prefix, got=got, allowed=describe_space(space), fix="give all its parts"))
        found |= parts_of(f"{prefix}/{key}", part, by_key[key])
    return found


def stack_elements(prefix: str, space: Space, elements: Sequence[Any]) -> Columns:
    """Return elements of a space, as Gymnasium gives them, as columns."""
    found = [parts_of(prefix, space, element) for element in elements]
    return unflatten(prefix, {path: np.stack([each[path] for each in found]) for path in found[0]})


def take_element(space: Space, columns: Columns, row: int) -> Any:
    """Return one row as an element of its space, as Gymnasium takes it: `stack_elements` undone."""
    parts = subspaces(space)
    if parts is None:
        element = np.asarray(columns)[row].astype(space.dtype, copy=False).reshape(space.shape or ())
        return element if space.shape else element[()]
    if not isinstance(columns, Mapping):
        got, allowed = type(columns).__name__, describe_space(space)
        raise InvalidDataError(explain("element", got=got, allowed=allowed, fix="give its parts by key"))
    made = {key: take_element(part, columns[key], row) for key, part in parts.items()}
    return tuple(made.values()) if isinstance(space, spaces.Tuple) else made


def _check_keys(prefix: str, mapping: Mapping[Any, Any]) -> None:
    if not mapping:
        raise InvalidDataError(explain(prefix, got="no parts", allowed="at least 1", fix="leave it out"))
    for key in mapping:
        if not isinstance(key, str) or not INFO_NAME.fullmatch(key) or key == METADATA_NAME:
            raise InvalidDataError(
                explain(
                    prefix,
                    got=f"the key {key!r}",
                    allowed=f"letters, digits, '_', '.' and '-', beginning with no '.' or '-', not {METADATA_NAME}",
                    fix="rename it",
                )
            )
