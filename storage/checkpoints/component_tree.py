"""A nested state as a tree of components. Pure: no files are touched here.

    {"learner": {"step": 7, "rl_module": {"w": array}}}
    ->  state/learner.json                   {"step": 7}
        state/learner/rl_module.safetensors  w

A dict is a component; arrays in it go to its `.safetensors` file, everything else to its `.json` file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.errors import CheckpointError, explain

Array = npt.NDArray[Any]
ROOT = ""
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_RESERVED_SUFFIXES = (".json", ".safetensors")
_RESERVED_LEAF = "__metadata__"  # safetensors' own header entry
# A key beginning with a dot would be a hidden file, one with a reserved suffix could name a sibling's file.
_MAX_DEPTH = 32  # of components: states nest less, and readers recurse
_MAX_SHOWN = 200  # of a stranger's name, which may be megabytes long
_ALLOWED_KEY = "letters, digits, '_', '-', '.'; no leading '.', no '..', no ending .json or .safetensors"
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64"),
)


@dataclass(frozen=True)
class Component:
    """One level of the state: its arrays and its JSON values."""

    arrays: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


def check_component(path: str) -> str:
    """Return the component path if each part of it is a safe file name.

    Raises:
        CheckpointError: it is not; so no path can leave the checkpoint's directory.
    """
    parts = path.split("/")
    if len(parts) > _MAX_DEPTH:
        message = explain(
            "checkpoint component",
            got=f"{len(parts)} levels",
            allowed=f"at most {_MAX_DEPTH}",
            fix="nest the state less deeply",
        )
        raise CheckpointError(message)
    for part in parts:
        if not _KEY.fullmatch(part) or ".." in part or part.endswith(_RESERVED_SUFFIXES):
            raise CheckpointError(
                explain(
                    "checkpoint component",
                    got=repr(path if len(path) <= _MAX_SHOWN else f"{path[:_MAX_SHOWN]}…"),
                    allowed=_ALLOWED_KEY,
                    fix="rename this key of the state",
                )
            )
    return path


def array_file(component: str) -> str:
    """Return the relative name of the component's array file."""
    return f"state/{component}.safetensors" if component else "state.safetensors"


def value_file(component: str) -> str:
    """Return the relative name of the component's JSON file."""
    return f"state/{component}.json" if component else "state.json"


def flatten(state: Mapping[str, Any]) -> dict[str, Component]:
    """Split a nested state into components by path; the root is ''. Parents come before their children.

    Raises:
        CheckpointError: a key or a value that cannot be stored, named by its path.
    """
    return dict(_walk(state, ROOT))


def _walk(level: Mapping[str, Any], path: str) -> Iterator[tuple[str, Component]]:
    component = Component()
    children: list[tuple[str, Mapping[str, Any]]] = []
    for key, value in level.items():
        where = f"{path}/{key}" if path else str(key)
        if not isinstance(key, str) or not key or key == _RESERVED_LEAF:
            raise CheckpointError(
                explain(f"state key in '{path}'", got=repr(key), allowed="non-empty str", fix="rename it")
            )
        if isinstance(value, Mapping):
            if "/" in key:
                raise CheckpointError(
                    explain(
                        "checkpoint component",
                        got=repr(where),
                        allowed="no '/' in a key",
                        fix="nest dicts instead",
                    )
                )
            children.append((check_component(where), value))
        elif isinstance(value, np.ndarray):
            component.arrays[key] = _storable(value, where)
        else:
            component.values[key] = to_json_value(value, where)
    yield path, component
    for where, child in children:
        yield from _walk(child, where)


def _storable(value: Array, where: str) -> Array:
    if value.dtype.name not in _DTYPES:
        raise CheckpointError(
            explain(
                f"state '{where}'",
                got=f"dtype {value.dtype}",
                allowed=", ".join(_DTYPES),
                fix="convert the array",
            )
        )
    # np.ascontiguousarray would turn a scalar array into one of shape (1,)
    return np.asarray(value, dtype=value.dtype.newbyteorder("="), order="C")


def to_json_value(value: Any, where: str) -> Any:
    """Return `value` as plain JSON types; NumPy scalars become Python's, tuples become lists.

    Raises:
        CheckpointError: a type that JSON has no place for.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [to_json_value(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: to_json_value(item, f"{where}.{key}") for key, item in value.items()}
    raise CheckpointError(
        explain(
            f"state '{where}'",
            got=type(value).__name__,
            allowed="numpy arrays, str, int, float, bool, None, lists, dicts with str keys",
            fix="store a registered name or plain numbers instead",
        )
    )


def assemble(components: Mapping[str, Component], root: str = ROOT) -> dict[str, Any]:
    """Rebuild the nested state below the component `root`: the inverse of `flatten`.

    Raises:
        CheckpointError: a component without its parent, or one name used twice.
    """
    levels: dict[str, dict[str, Any]] = {}
    for path in sorted(components):
        component = components[path]
        levels[path] = level = {**component.arrays, **component.values}
        if len(level) != len(component.arrays) + len(component.values):
            raise CheckpointError(_twice(path))
        if path == root:
            continue
        parent, _, key = path.rpartition("/")
        if parent not in levels:
            raise CheckpointError(
                explain(
                    f"checkpoint component '{path}'",
                    got="no parent",
                    allowed="a tree",
                    fix="do not use this file",
                )
            )
        if key in levels[parent]:
            raise CheckpointError(_twice(path))
        levels[parent][key] = level
    return levels[root]


def _twice(path: str) -> str:
    return explain(
        f"checkpoint component '{path}'",
        got="one name twice",
        allowed="distinct names",
        fix="do not use this file",
    )
