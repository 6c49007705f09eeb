"""HDF5 files, with errors that name the file."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dask_rl.storage.errors import ConfigError, DaskRLError, SourceFormatError, explain

from .unreadable import NONSENSE

HDF5_SUFFIXES = (".h5", ".hdf5")
_DAMAGED = "fetch it again: it is damaged or incomplete"


def is_hdf5_name(path: Path) -> bool:
    """Whether the name says HDF5."""
    return path.suffix.lower() in HDF5_SUFFIXES


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file for reading; what goes wrong with its bytes becomes a SourceFormatError.

    Raises:
        SourceFormatError: not HDF5, truncated or damaged; also while the block reads from it.
        ConfigError: h5py is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise ConfigError(
            explain(str(path), got="no h5py to read HDF5 with", fix="pip install 'dask-rl[formats]'")
        ) from error
    try:
        with h5py.File(path, "r") as file:
            yield file
    except DaskRLError:
        raise
    except NONSENSE as error:
        reason = " ".join(str(error).split())[:160]
        raise SourceFormatError(
            explain(str(path), got=f"unreadable HDF5 ({reason})", allowed="a complete HDF5 file", fix=_DAMAGED)
        ) from error


def read_dataset(group: Any, key: str, origin: str) -> Any:
    """Return the dataset `key` of a group, not yet read.

    Raises:
        SourceFormatError: it is missing, or a group; its values lie in other files (which could be any of ours), or
            some of them nowhere: they would be read as zeros.
    """
    found = _member(group, key, origin)
    if getattr(found, "shape", None) is None:
        raise SourceFormatError(
            explain(
                f"{origin}{group.name.rstrip('/')}/{key}",
                got="a nested value",
                allowed="one array",
                fix="correct the space that the source declares, or flatten its values",
            )
        )
    if found.external or found.is_virtual:
        raise _elsewhere(f"{origin}{found.name}")
    if _is_partly_written(found):
        got, fix = "values that were never written", f"{_DAMAGED}; or write its zeros too"
        raise SourceFormatError(explain(f"{origin}{found.name}", got=got, allowed="all values", fix=fix))
    return found


def read_group(group: Any, key: str, origin: str) -> Any:
    """Return the group `key` of a group.

    Raises:
        SourceFormatError: it is missing, or no group, or lies in another file, which could be any of ours.
    """
    found = _member(group, key, origin)
    if not hasattr(found, "keys"):
        got, allowed = "an array", "a group of arrays"
        raise SourceFormatError(explain(f"{origin}{found.name}", got=got, allowed=allowed, fix=_DAMAGED))
    return found


def _member(group: Any, key: str, origin: str) -> Any:
    found = group.get(key)
    if found is None:
        raise SourceFormatError(explain(f"{origin}{group.name.rstrip('/')}/{key}", got="nothing", fix=_DAMAGED))
    if found.file.filename != group.file.filename:
        raise _elsewhere(f"{origin}{group.name.rstrip('/')}/{key}")
    return found


def _elsewhere(subject: str) -> SourceFormatError:
    got, allowed, fix = "a link to another file", "values in this file", "copy them into it"
    return SourceFormatError(explain(subject, got=got, allowed=allowed, fix=fix))


def _is_partly_written(dataset: Any) -> bool:
    """Whether the file has less of a dataset than its shape says, as a recorder that died leaves it."""
    if dataset.chunks is None:
        return bool(dataset.id.get_storage_size() < dataset.size * dataset.id.get_type().get_size())
    wanted = math.prod(-(-rows // chunk) for rows, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    return bool(dataset.id.get_num_chunks() < wanted)


@contextmanager
def open_hdf5_columns(path: Path) -> Iterator[Callable[[str], Any]]:
    """Open an HDF5 file and give its datasets by name, not yet read; raises as `open_hdf5` and `read_dataset`."""
    with open_hdf5(path) as file:
        yield partial(read_dataset, file, origin=str(path))
