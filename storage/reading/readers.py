"""Which reader reads an array: by where the dataset lies, and how the array is stored."""

from dask_rl.storage.layout import ArrayLayout
from dask_rl.storage.location import Location
from dask_rl.storage.manifest import Commit
from dask_rl.storage.remote.directory import RemoteDirectory

from .reader import RowReader, ShardReader, ZarrReader
from .remote_reader import RemoteShardReader


def open_reader(location: Location, key: str, layout: ArrayLayout | None, commit: Commit) -> RowReader:
    """Return the reader of one array.

    Args:
        location: the dataset.
        key: the array.
        layout: how it is stored; None where only zarr-python knows.
        commit: the manifest.
    """
    if layout is None:
        return ZarrReader(location, key, commit)
    if isinstance(location, RemoteDirectory):
        return RemoteShardReader(location, layout, commit)
    return ShardReader(location, layout)
