"""Replay buffers in Zarr v2 (diffusion-policy, UMI): `data/*` on one time axis and `meta/episode_ends`.

A directory, or the same in a zip file. They hold neither rewards nor final observations nor flags.
"""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.storage

from dask_rl.storage.errors import DaskRLError, SourceFormatError, explain
from dask_rl.storage.schema import INFO_NAME

from .base import Array, ImportOptions, Source
from .flat import Cuts, Lookup, Roles, check_columns, make_flat_source
from .replay_chunks import DAMAGED, check_array
from .unreadable import NONSENSE

_ENDS = "meta/episode_ends"
_ACTIONS = ("action", "actions")
_REWARDS = ("reward", "rewards")
_ZIP_SUFFIX = ".zarr.zip"
_RULE = (
    "episodes split at meta/episode_ends; the source has no flags: every end is a truncation; observations are all "
    "arrays but the actions and rewards"
)


class ReplayBufferImporter:
    """Reads a Zarr v2 group with `data` and `meta/episode_ends`, a directory or a `.zarr.zip`."""

    name = "zarr-v2"

    def detect(self, path: Path) -> bool:
        """Whether there is such a group."""
        marker = f"{_ENDS}/.zarray"
        if path.is_dir():
            return (path / marker).is_file()
        if not (path.is_file() and path.name.lower().endswith(".zip")):
            return False
        with _explained(path), zipfile.ZipFile(path) as archive:
            return marker in archive.namelist()

    def read(self, path: Path, options: ImportOptions) -> Source:
        """Open the buffer; see `Importer`."""
        with _open_group(path) as group:
            with _explained(path):
                arrays = dict(group["data"].arrays())
                for name, array in arrays.items():
                    check_array(path, f"data/{name}", array)
                check_array(path, _ENDS, group[_ENDS])
                unread = list(_unread(group))
            if group[_ENDS].dtype.kind not in "iu":
                got, allowed = f"values of type {group[_ENDS].dtype}", "whole numbers"
                raise SourceFormatError(explain(f"{path}: {_ENDS}", got=got, allowed=allowed, fix=DAMAGED))
            ends = np.asarray(_Column(group[_ENDS], path / _ENDS)[:]).reshape(-1).astype(np.int64)
            numeric = {name: array for name, array in arrays.items() if array.dtype.kind in "biuf" and array.shape}
            num_rows = check_columns(str(path), numeric)
            roles = _roles(path, numeric)
        starts = np.append(0, ends[:-1])
        if not len(ends) or (starts >= ends).any() or ends[-1] > num_rows:
            got = f"{_ENDS} up to {ends[-1] if len(ends) else 0} for {num_rows} rows"
            raise SourceFormatError(explain(str(path), got=got, allowed="growing ends within the rows", fix=DAMAGED))
        rest = num_rows - int(ends[-1])
        return make_flat_source(
            _RULE,
            str(path),
            partial(_open_columns, path),
            roles,
            Cuts(starts, ends, np.zeros(len(ends), dtype=bool)),
            left_out=tuple(sorted([*unread, *(f"data/{name}" for name in arrays.keys() - numeric.keys())])),
            notes=(f"{rest} rows after the last of {_ENDS} were left out",) if rest else (),
        )


def _unread(group: "_Group") -> Iterator[str]:
    """Yield what lies in the group beside `meta/episode_ends` and the arrays of `data`."""
    yield from (name for name in group.names() if name not in ("data", "meta"))
    yield from (f"data/{name}" for name in group["data"].group_keys())
    yield from (f"meta/{name}" for name in group["meta"] if f"meta/{name}" != _ENDS)


def _roles(path: Path, arrays: dict[str, Any]) -> Roles:
    for spellings in (_ACTIONS, _REWARDS):
        if set(spellings) <= arrays.keys():
            got, fix = f"both {' and '.join(spellings)}", "keep the one that is meant"
            raise SourceFormatError(explain(f"{path}: data", got=got, allowed="one of them", fix=fix))
    actions = next((name for name in _ACTIONS if name in arrays), None)
    rewards = next((name for name in _REWARDS if name in arrays), None)
    observed = sorted(arrays.keys() - {actions, rewards})
    if actions is None or not observed:
        got, allowed = f"arrays {', '.join(sorted(arrays))}", "data/action and arrays of observations"
        raise SourceFormatError(explain(str(path), got=got, allowed=allowed, fix="rename the arrays"))
    names = {f"observations/{name}": name for name in observed}
    if len(observed) == 1:
        names = {"observations": observed[0]}
    elif unusable := [name for name in observed if not INFO_NAME.fullmatch(name)]:
        allowed = "letters, digits, '_', '.' and '-'"
        raise SourceFormatError(explain(str(path), got=f"arrays {unusable}", allowed=allowed, fix="rename them"))
    return Roles(names, {"actions": actions}, rewards)


@contextmanager
def _open_columns(path: Path) -> Iterator[Lookup]:
    with _open_group(path) as group:
        yield lambda name: _Column(group["data"][name], path / "data" / name)


class _Column:
    """A Zarr array; what goes wrong with its bytes is explained."""

    def __init__(self, array: Any, path: Path) -> None:
        self._array = array
        self._path = path
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: np.dtype[Any] = array.dtype

    def __getitem__(self, rows: slice) -> Array:
        with _explained(self._path):
            values: Array = self._array[rows]
        return values


@contextmanager
def _open_group(path: Path) -> Iterator[Any]:
    with _explained(path):
        store: Any = zarr.storage.LocalStore(path, read_only=True)
        if path.is_file():
            store = zarr.storage.ZipStore(path, mode="r", read_only=True)
        group = zarr.open_group(store, mode="r", zarr_format=2)
    try:
        yield _Group(group, path)
    finally:
        store.close()


class _Group:
    """A Zarr group whose members are there, or an error says which is not."""

    def __init__(self, group: Any, path: Path) -> None:
        self._group = group
        self._path = path

    def __getitem__(self, name: str) -> Any:
        with _explained(self._path):
            return self._group[name]

    def names(self) -> list[str]:
        """Return what lies in the group itself."""
        with _explained(self._path):
            return list(self._group.keys())


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what goes wrong with the bytes of a buffer into a SourceFormatError."""
    try:
        yield
    except DaskRLError:
        raise
    except NONSENSE as error:
        reason = " ".join(str(error).split())[:160]
        raise SourceFormatError(
            explain(str(path), got=f"an unreadable Zarr v2 group ({reason})", allowed="a complete one", fix=DAMAGED)
        ) from error
