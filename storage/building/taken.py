"""Whether the place of a new dataset is taken: asked before hours of work, and again by the writer."""

import os

from dask_rl.storage.errors import DatasetError, explain
from dask_rl.storage.locate import local_path, locate
from dask_rl.storage.schema import COMMIT_NAME


def refuse_if_taken(dest: str | os.PathLike[str], overwrite: bool) -> None:
    """Refuse early what a writer would refuse at its end.

    Args:
        dest: a path or URL; behind a URL, what an interrupted writer left is not in the way.
        overwrite: whether what is there may be replaced.

    Raises:
        DatasetError: something is there, and may not be replaced.
    """
    local = local_path(dest)
    if overwrite or not (_is_complete(dest) if local is None else os.path.lexists(local)):
        return
    kind = "URL" if local is None else "path"
    fix = f"choose another {kind}, or overwrite it (overwrite=True, --overwrite)"
    raise DatasetError(
        explain(f"dataset {local or dest}", got=f"a {kind} that exists already", allowed=f"a new {kind}", fix=fix)
    )


def _is_complete(dest: str | os.PathLike[str]) -> bool:
    try:
        locate(dest).read(COMMIT_NAME)
    except FileNotFoundError:
        return False
    return True
