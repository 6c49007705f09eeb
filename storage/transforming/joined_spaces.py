"""The smallest space that holds the elements of several: of imports whose bounds are those of the values seen."""

from collections.abc import Iterable
from functools import reduce

import numpy as np
from gymnasium import spaces

from dask_rl.storage.spaces import Space, spaces_equal


def join_spaces(given: Iterable[Space]) -> Space | None:
    """Return the space of all elements of all these; None where they are of different kinds.

    Boxes of one shape and type get the wider bounds, Discrete spaces of one first value the larger number; Dicts and
    Tuples are joined part by part.
    """
    return reduce(lambda joined, space: None if joined is None else _join(joined, space), given)


def _join(a: Space, b: Space) -> Space | None:
    if spaces_equal(a, b):
        return a
    match a, b:
        case spaces.Box(), spaces.Box() if a.shape == b.shape and a.dtype == b.dtype:
            low, high = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
            return spaces.Box(low, high, dtype=a.dtype.type)
        case spaces.Discrete(), spaces.Discrete() if a.start == b.start:
            return spaces.Discrete(max(int(a.n), int(b.n)), start=int(a.start))
        case spaces.Dict(), spaces.Dict() if a.spaces.keys() == b.spaces.keys():
            parts = {key: _join(part, b.spaces[key]) for key, part in a.spaces.items()}
            return None if None in parts.values() else spaces.Dict(parts)
        case spaces.Tuple(), spaces.Tuple() if len(a.spaces) == len(b.spaces):
            joined = [_join(*pair) for pair in zip(a.spaces, b.spaces, strict=True)]
            return None if None in joined else spaces.Tuple(joined)
    return None
