"""Which reader reads an array: by where the dataset lies."""

from dask_rl.storage.layout import ArrayLayout
from dask_rl.storage.location import LocalDirectory, Location
from dask_rl.storage.manifest import Commit
from dask_rl.storage.remote.directory import RemoteDirectory

from .reader import RowReader, ShardReader
from .remote_reader import RemoteShardReader


def open_reader(location: Location, layout: ArrayLayout, commit: Commit) -> RowReader:
    """Return the reader of one array.

    Args:
        location: the dataset.
        layout: how the array is stored.
        commit: the manifest.
    """
    if isinstance(location, RemoteDirectory):
        return RemoteShardReader(location, layout, commit)
    assert isinstance(location, LocalDirectory)
    return ShardReader(location, layout)
