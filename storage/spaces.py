"""Gymnasium spaces as JSON, in Minari's form, and back.

Numbers that JSON lacks are written as the strings "Infinity", "-Infinity" and "NaN", as Zarr v3 does;
bare tokens, which Minari writes, are read too.
"""

import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from .errors import DatasetError, explain

Space = spaces.Space[Any]
SPACE_TYPES = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple", "Text")
_MAX_ELEMENTS = 1 << 23  # of all Boxes together: bounds in two numbers must not reserve all memory
_MAX_DIMENSIONS = 32
_DTYPE_NAME = re.compile(r"[<>=|]?[a-z]+\d*")
_MAX_LISTED = 1024  # elements whose bounds are written out one by one though they are alike, as Minari does
_NON_FINITE = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def space_to_json(space: Space) -> dict[str, Any]:
    """Return the space as a JSON-able dict, in Minari's form.

    Raises:
        DatasetError: the space is of a type that a dataset cannot hold.
    """
    match space:
        case spaces.Box():
            return _box_to_json(space)
        case spaces.Discrete():
            return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
        case spaces.MultiDiscrete():
            return {
                "type": "MultiDiscrete",
                "dtype": str(space.dtype),
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
            }
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "n": _plain_shape(space.n)}
        case spaces.Dict():
            return {
                "type": "Dict",
                "subspaces": {key: space_to_json(sub) for key, sub in space.spaces.items()},
            }
        case spaces.Tuple():
            return {"type": "Tuple", "subspaces": [space_to_json(sub) for sub in space.spaces]}
        case spaces.Text():
            return {
                "type": "Text",
                "max_length": space.max_length,
                "min_length": space.min_length,
                "charset": space.characters,
            }
    raise DatasetError(
        explain(
            "space",
            got=type(space).__name__,
            allowed=", ".join(SPACE_TYPES),
            fix="convert it to one of these",
        )
    )


def _box_to_json(space: spaces.Box) -> dict[str, Any]:
    return {
        "type": "Box",
        "dtype": str(space.dtype),
        "shape": list(space.shape),
        "low": _bound_to_json(space.low),
        "high": _bound_to_json(space.high),
    }


def _bound_to_json(bound: npt.NDArray[Any]) -> Any:
    """Return the bounds of all elements or, where there are many and they are alike (of images), the one for all."""
    if bound.size > _MAX_LISTED and (bound == bound.flat[0]).all():
        return _jsonable(bound.flat[0].item())
    return _jsonable(bound.tolist())


def space_from_json(obj: Mapping[str, Any]) -> Space:
    """Return the space that `space_to_json` (or Minari) wrote.

    Raises:
        DatasetError: it describes no space.
    """
    try:
        if (num_elements := _num_elements(obj)) > _MAX_ELEMENTS:
            raise ValueError(f"{num_elements} elements, more than {_MAX_ELEMENTS}")
        return _parse(obj)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, AttributeError, AssertionError) as error:
        raise DatasetError(
            explain(
                "space",
                got=f"{reprlib.repr(obj)[:80]} ({error})",
                allowed=", ".join(SPACE_TYPES),
                fix="repair the source",
            )
        ) from error


def _num_elements(obj: Mapping[str, Any]) -> int:
    inner = obj.get("subspaces", ())
    shape = obj.get("shape", ())
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"{len(shape)} dimensions")
    lengths = [int(n) for n in shape]
    if min(lengths, default=0) < 0:
        raise ValueError(f"an axis of length {min(lengths)}")
    subspaces = inner.values() if isinstance(inner, Mapping) else inner
    return math.prod(lengths) + sum(_num_elements(sub) for sub in subspaces)


def _parse(obj: Mapping[str, Any]) -> Space:
    kind = obj["type"]
    if kind == "Box":
        dtype, shape = _dtype(obj["dtype"]), tuple(int(n) for n in obj["shape"])
        low = np.broadcast_to(np.array(obj["low"], dtype=dtype), shape)
        high = np.broadcast_to(np.array(obj["high"], dtype=dtype), shape)
        return spaces.Box(low=low, high=high, shape=shape, dtype=dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(n=int(obj["n"]), start=int(obj.get("start", 0)))
    if kind == "MultiDiscrete":
        dtype = _dtype(obj.get("dtype", "int64"))
        return spaces.MultiDiscrete(nvec=obj["nvec"], dtype=dtype.type, start=obj.get("start"))
    if kind == "MultiBinary":
        return spaces.MultiBinary(n=obj["n"])
    if kind == "Dict":
        return spaces.Dict({key: _parse(sub) for key, sub in obj["subspaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple(tuple(_parse(sub) for sub in obj["subspaces"]))
    if kind == "Text":
        return spaces.Text(max_length=obj["max_length"], min_length=obj["min_length"], charset=obj["charset"])
    raise ValueError(f"unknown type {kind!r}")


def _dtype(name: Any) -> np.dtype[Any]:
    """Return a type of numbers by its name; NumPy would take far more, even parse it as Python."""
    if not isinstance(name, str) or not _DTYPE_NAME.fullmatch(name) or np.dtype(name).kind not in "biuf":
        raise ValueError(f"dtype {name!r}")
    return np.dtype(name)


def spaces_equal(a: Space, b: Space) -> bool:
    """Whether two spaces hold the same elements (seeds and random state aside)."""
    return space_to_json(a) == space_to_json(b)


def describe_space(space: Space) -> str:
    """Return a short description on one line, such as `Box(-2.0, 2.0, (1,), float32)`."""
    match space:
        case spaces.Box():
            low, high = _short(space.low), _short(space.high)
            return f"Box({low}, {high}, {tuple(space.shape)}, {space.dtype})"
        case spaces.Dict():
            inner = ", ".join(f"{key}: {describe_space(sub)}" for key, sub in space.spaces.items())
            return f"Dict({inner})"
        case spaces.Tuple():
            return f"Tuple({', '.join(describe_space(sub) for sub in space.spaces)})"
        case spaces.Text():
            return f"Text({space.min_length}, {space.max_length})"
    return " ".join(str(space).split())


def infer_box(
    minimum: npt.ArrayLike, maximum: npt.ArrayLike, shape: tuple[int, ...], dtype: npt.DTypeLike
) -> spaces.Box:
    """Return the smallest Box that holds the values seen, for sources that name no space.

    Args:
        minimum: smallest values seen, broadcastable to `shape`.
        maximum: largest values seen, broadcastable to `shape`.
        shape: the shape of one value.
        dtype: the dtype of the data.
    """
    numpy_dtype = np.dtype(dtype)
    low = np.broadcast_to(np.asarray(minimum, dtype=numpy_dtype), shape)
    high = np.broadcast_to(np.asarray(maximum, dtype=numpy_dtype), shape)
    return spaces.Box(low=low, high=high, shape=shape, dtype=numpy_dtype.type)


def _jsonable(value: Any) -> Any:
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return _NON_FINITE.get(str(value), value) if isinstance(value, float) else value


def _plain_shape(n: Any) -> int | list[int]:
    return int(n) if np.ndim(n) == 0 else [int(item) for item in n]


def _short(bound: npt.NDArray[Any]) -> str:
    if bound.size == 0:
        return "[]"
    smallest, largest = bound.min(), bound.max()
    return str(smallest) if smallest == largest else f"[{smallest}..{largest}]"
