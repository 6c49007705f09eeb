"""The smallest space that holds the elements of several: of imports whose bounds are those of the values seen."""

from collections.abc import Iterable

import numpy as np
from gymnasium import spaces

from dask_rl.storage.spaces import Space, spaces_equal


def join_spaces(given: Iterable[Space]) -> Space | None:
    """Return the space of all elements of all these; None where they are of different kinds.

    Boxes of one shape and type get the wider bounds, Discrete spaces of one first value the larger number; Dicts and
    Tuples are joined part by part.
    """
    first, *others = given
    joined: Space | None = first
    for space in others:
        joined = None if joined is None else _join(joined, space)
    return joined


def _join(a: Space, b: Space) -> Space | None:
    if spaces_equal(a, b):
        return a
    if isinstance(a, spaces.Box) and isinstance(b, spaces.Box) and a.shape == b.shape and a.dtype == b.dtype:
        return spaces.Box(np.minimum(a.low, b.low), np.maximum(a.high, b.high), dtype=a.dtype.type)
    if isinstance(a, spaces.Discrete) and isinstance(b, spaces.Discrete) and a.start == b.start:
        return spaces.Discrete(max(int(a.n), int(b.n)), start=int(a.start))
    if isinstance(a, spaces.Dict) and isinstance(b, spaces.Dict) and a.spaces.keys() == b.spaces.keys():
        parts = _join_parts((part, b.spaces[key]) for key, part in a.spaces.items())
        return None if parts is None else spaces.Dict(dict(zip(a.spaces, parts, strict=True)))
    if isinstance(a, spaces.Tuple) and isinstance(b, spaces.Tuple) and len(a.spaces) == len(b.spaces):
        parts = _join_parts(zip(a.spaces, b.spaces, strict=True))
        return None if parts is None else spaces.Tuple(parts)
    return None


def _join_parts(pairs: Iterable[tuple[Space, Space]]) -> list[Space] | None:
    parts: list[Space] = []
    for pair in pairs:
        part = _join(*pair)
        if part is None:
            return None
        parts.append(part)
    return parts
