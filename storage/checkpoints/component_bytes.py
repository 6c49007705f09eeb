"""A component's arrays and values as bytes, and back. Neither format can carry code: decoding runs none.

What is decoded may come from a stranger. So bounds are checked on the bytes, before anything of their size is built,
and are kept on writing too: what can be saved can be loaded.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy

from dask_rl.storage.errors import CheckpointError, explain

from .component_tree import Array

MAX_JSON_BYTES = 64 * 2**20
# Parsed, a pair of brackets of two bytes takes 72 and a value of two bytes 36.
_MAX_JSON_CONTAINERS = 2**18
_MAX_JSON_VALUES = 2**21
_MAX_JSON_DEPTH = 100  # far below what the recursion of any reader bears
_LENGTH_BYTES = 8  # of a safetensors file: the length of its header, little-endian
_FIX = "the file is damaged: use another checkpoint"
_FIX_ON_SAVING = "keep long data in arrays"
_TYPE_CODES = ("BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "F16", "F32", "F64", "C64")


def encode_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Return the arrays in the safetensors format."""
    return safetensors_numpy.save(dict(arrays))


def decode_arrays(data: bytes, name: str) -> dict[str, Array]:
    """Return writable arrays from bytes in the safetensors format; `name` is the file, for messages.

    Raises:
        CheckpointError: damaged bytes, or names, shapes and dtypes that do not fit them.
    """
    _check_header(data, name)
    try:
        loaded = safetensors_numpy.load(data)
    except (SafetensorError, ValueError, KeyError, OverflowError, TypeError) as error:
        raise CheckpointError(_unreadable(name, "arrays", _first_line(error), "safetensors")) from error
    # the loader's arrays are read-only views of its buffers: torch and in-place updates need their own
    return {key: value.copy() for key, value in loaded.items()}


def _check_header(data: bytes, name: str) -> None:
    """Check what the loader would let pass (a name twice) or import a package for (other types)."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > len(data) - _LENGTH_BYTES:
        raise CheckpointError(_unreadable(name, "arrays", f"a header of {length} bytes", "safetensors"))
    for key, entry in decode_values(data[_LENGTH_BYTES : _LENGTH_BYTES + length], name).items():
        code = entry.get("dtype") if isinstance(entry, dict) else None
        if key == "__metadata__" or code not in _TYPE_CODES:
            got = f"{short(key)} of type {short(code)}"
            raise CheckpointError(_unreadable(name, "arrays", got, ", ".join(_TYPE_CODES)))


def encode_values(values: Mapping[str, Any], name: str) -> bytes:
    """Return the values as JSON; floats keep every bit, NaN and infinities are Python's extension.

    Raises:
        CheckpointError: more than `decode_values` takes.
    """
    _check_depth(values, name, _FIX_ON_SAVING)
    data = json.dumps(values, indent=1).encode()
    _check_amount(data, name, _FIX_ON_SAVING)
    return data


def decode_values(data: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object in `data`; `name` is the file, for messages.

    Raises:
        CheckpointError: it is not one JSON object, names a key twice, or is an absurd one.
    """
    _check_amount(data, name, _FIX)
    try:
        loaded = json.loads(data, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:  # also: not UTF-8, absurdly long numbers, absurd nesting
        raise CheckpointError(_unreadable(name, "JSON", _first_line(error), "a JSON object")) from error
    if not isinstance(loaded, dict):
        raise CheckpointError(explain(name, got=type(loaded).__name__, allowed="a JSON object", fix=_FIX))
    _check_depth(loaded, name, _FIX)
    return loaded


def short(value: Any) -> str:
    """Return its repr, cut: a stranger's name may be megabytes long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    loaded = dict(pairs)
    if len(loaded) != len(pairs):
        raise ValueError("one key twice")
    return loaded


def _check_amount(data: bytes, name: str, fix: str) -> None:
    containers, values = data.count(b"{") + data.count(b"["), data.count(b",")
    if len(data) > MAX_JSON_BYTES or containers > _MAX_JSON_CONTAINERS or values > _MAX_JSON_VALUES:
        got = f"JSON of {len(data)} bytes, {containers} brackets, {values} values"
        allowed = f"at most {MAX_JSON_BYTES}, {_MAX_JSON_CONTAINERS}, {_MAX_JSON_VALUES}"
        raise CheckpointError(explain(name, got=got, allowed=allowed, fix=fix))


def _check_depth(values: Mapping[str, Any], name: str, fix: str) -> None:
    level: list[Any] = [values]
    for _ in range(_MAX_JSON_DEPTH):
        level = [item for node in level for item in _items(node) if isinstance(item, (dict, list))]
        if not level:
            return
    allowed = f"at most {_MAX_JSON_DEPTH} levels"
    raise CheckpointError(explain(name, got="JSON nested too deeply", allowed=allowed, fix=fix))


def _items(node: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node


def _unreadable(name: str, what: str, reason: str, allowed: str) -> str:
    return explain(name, got=f"unreadable {what} ({reason})", allowed=allowed, fix=_FIX)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
