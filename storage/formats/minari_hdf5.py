"""Minari's episodes in HDF5: one group an episode; Dict values are groups, Tuple values groups of `_index_i`."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dask_rl.storage.errors import SourceFormatError, explain
from dask_rl.storage.nested import Columns, is_nested, subspaces

from .base import Array, RawEpisode, Space
from .hdf5 import open_hdf5, read_dataset, read_group
from .minari_episode import EpisodeTable, make_episode
from .minari_images import NOTE, decode_images, may_be_encoded
from .minari_infos import Info, common_infos, describe, from_json, last_rows

MAIN_FILE = "main_data.hdf5"
_GROUP = re.compile(r"episode_(\d+)")
_INDEX = re.compile(r"_index_(\d+)")
_FLAGS = ("rewards", "terminations", "truncations")


def hdf5_table(folder: Path, declared: Mapping[str, Space]) -> EpisodeTable:
    """Return where the episodes are.

    Args:
        folder: the `data` folder.
        declared: the spaces of `observations` and `actions`, where they are known; what these lack is not read.

    Raises:
        SourceFormatError: the file is missing or damaged.
    """
    path = folder / MAIN_FILE
    if not path.is_file():
        raise SourceFormatError(explain(str(path), got="no such file", fix="fetch the dataset again"))
    notes: tuple[str, ...] = ()
    with open_hdf5(path) as file:
        numbers = sorted(int(match[1]) for name in file if (match := _GROUP.fullmatch(name)))
        kept, left_out = common_infos(
            _describe_infos(read_group(file, f"episode_{number}", str(path)), str(path)) for number in numbers
        )
        first = read_group(file, f"episode_{numbers[0]}", str(path)) if numbers else None
        if first is not None and any(_encoded(first, name, space) for name, space in declared.items()):
            notes = (NOTE,)
    return EpisodeTable(str(path), numbers, partial(_read, path, declared, kept), left_out, notes)


def _read(path: Path, declared: Mapping[str, Space], infos: frozenset[str], numbers: list[int]) -> Iterator[RawEpisode]:
    origin = str(path)
    with open_hdf5(path) as file:
        for number in numbers:
            group = read_group(file, f"episode_{number}", origin)
            observations, actions = (
                _values(group, name, declared.get(name), origin) for name in ("observations", "actions")
            )
            flags = {key: read_dataset(group, key, origin)[()] for key in _FLAGS}
            infos_here = _read_infos(group, infos, origin)
            yield make_episode(origin, number, observations, actions, flags, infos_here, dict(group.attrs))


def _values(group: Any, name: str, space: Space | None, origin: str) -> Columns:
    """Return an array, or the arrays of a nested value by key."""
    found = group.get(name)
    if found is None or hasattr(found, "shape") or (space is not None and not is_nested(space)):
        return _array(group, name, space, origin)
    found = read_group(group, name, origin)
    names = {_INDEX.sub(r"\1", inner): inner for inner in found}
    keys = sorted(names, key=int) if all(key.isdecimal() for key in names) else sorted(names)
    parts: Mapping[str, Space | None] = dict.fromkeys(keys)
    if space is not None:
        parts = subspaces(space) or parts
    return {key: _values(found, names.get(key, key), part, origin) for key, part in parts.items()}


def _array(group: Any, name: str, space: Space | None, origin: str) -> Array:
    stored = read_dataset(group, name, origin)
    values: Array = stored[()]
    if space is not None and _is_encoded(stored, space):
        return decode_images(values, space, f"{origin}{stored.name}")
    return values


def _is_encoded(stored: Any, space: Space) -> bool:
    return may_be_encoded(space) and tuple(stored.shape[1:]) != space.shape


def _encoded(group: Any, name: str, space: Space) -> bool:
    """Whether any part of a value is stored as encoded images."""
    found = group.get(name)
    if hasattr(found, "shape"):
        return _is_encoded(found, space)
    parts = subspaces(space) or {}
    return found is not None and any(
        _encoded(found, key if key in found else f"_index_{key}", part) for key, part in parts.items()
    )


def _describe_infos(group: Any, origin: str) -> dict[str, Info]:
    """Return what an episode has of infos, by name."""
    if "infos" not in group:
        return {}
    if hasattr(group["infos"], "shape"):
        return {name: describe(column) for name, column in _json_infos(group, origin).items()}
    return {
        name: Info(tuple(item.shape)[1:], item.dtype.str, bool(item.shape) and item.dtype.kind in "biuf")
        for name, item in _info_arrays(group, origin).items()
    }


def _info_arrays(group: Any, origin: str) -> dict[str, Any]:
    """Return the arrays of infos by name, those of nested ones joined by dots."""
    found: dict[str, Any] = {}

    def visit(path: str, item: Any) -> None:
        if hasattr(item, "dtype"):
            found[path.replace("/", ".")] = item

    read_group(group, "infos", origin).visititems(visit)
    return found


def _read_infos(group: Any, names: frozenset[str], origin: str) -> dict[str, Array]:
    if not names:
        return {}
    if hasattr(group["infos"], "shape"):
        found = _json_infos(group, origin)
        return {name: column for name in sorted(names) if (column := found[name]) is not None}
    num_steps = read_dataset(group, "rewards", origin).shape[0]
    arrays = {name: item for name, item in _info_arrays(group, origin).items() if name in names}
    return {name: last_rows(read_dataset(group, item.name, origin)[()], num_steps) for name, item in arrays.items()}


def _json_infos(group: Any, origin: str) -> dict[str, Array | None]:
    texts = read_dataset(group, "infos", origin)[()]
    return from_json(list(texts), read_dataset(group, "rewards", origin).shape[0], origin)
