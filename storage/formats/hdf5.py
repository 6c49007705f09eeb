"""HDF5 files, with errors that name the file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dask_rl.storage.errors import ConfigError, DaskRLError, SourceFormatError, explain

HDF5_SUFFIXES = (".h5", ".hdf5")
_DAMAGED = "fetch it again: it is damaged or incomplete"
# What h5py and NumPy raise on bytes that make no sense, absurd sizes among them.
_UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)


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
    except _UNREADABLE as error:
        reason = " ".join(str(error).split())[:160]
        raise SourceFormatError(
            explain(str(path), got=f"unreadable HDF5 ({reason})", allowed="a complete HDF5 file", fix=_DAMAGED)
        ) from error


def read_dataset(group: Any, key: str, origin: str) -> Any:
    """Return the dataset `key` of a group, not yet read.

    Raises:
        SourceFormatError: it is missing, or a group, or its values lie in other files (which could be any of ours).
    """
    found = group.get(key)
    if found is None:
        raise SourceFormatError(explain(f"{origin}{group.name.rstrip('/')}/{key}", got="nothing", fix=_DAMAGED))
    if not hasattr(found, "shape"):
        raise SourceFormatError(
            explain(
                f"{origin}{group.name.rstrip('/')}/{key}",
                got="a nested value",
                allowed="one array",
                fix="correct the space that the source declares, or flatten its values",
            )
        )
    if found.file.filename != group.file.filename or found.external or found.is_virtual:
        got = "a link to another file"
        raise SourceFormatError(
            explain(f"{origin}{found.name}", got=got, allowed="values in this file", fix="copy them into it")
        )
    return found


@contextmanager
def open_hdf5_columns(path: Path) -> Iterator[Callable[[str], Any]]:
    """Open an HDF5 file and give its datasets by name, not yet read; raises as `open_hdf5` and `read_dataset`."""
    with open_hdf5(path) as file:
        yield partial(read_dataset, file, origin=str(path))
