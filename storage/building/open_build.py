"""Where a new dataset grows: in a directory of this machine, or behind a URL."""

import os
from pathlib import Path

from dask_rl.storage.locate import local_path
from dask_rl.storage.remote.address import as_url

from .build import BuildDirectory
from .builds import Build
from .remote_build import RemoteBuild


def open_build(path: str | os.PathLike[str], overwrite: bool) -> Build:
    """Take the place of a new dataset.

    Args:
        path: a path, or a URL that fsspec can write to.
        overwrite: whether a dataset there is to be replaced.

    Raises:
        DatasetError: it exists already, another writer is at work, or the place cannot be written.
    """
    local = local_path(path)
    if local is None:
        return RemoteBuild(as_url(os.fspath(path)) or "", overwrite)
    return BuildDirectory(Path(os.path.abspath(local)), overwrite)
