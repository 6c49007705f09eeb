"""Whether the datasets of a job are there before its first run."""

from collections.abc import Iterable

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import DatasetError


def what_is_wrong(paths: Iterable[str]) -> list[str]:
    """Return a line for each local dataset that cannot be opened now; it may come before the job is due."""
    found = []
    for path in paths:
        if "://" in path:  # asking for one takes a network, and time
            continue
        try:
            OfflineDataset.open(path).close()
        except DatasetError as error:
            found.append(" ".join(str(error).split()))
    return found
