"""The shard files that are open: of all readers of a process together, no more than it may have descriptors for."""

import itertools
import resource
import weakref
from collections import OrderedDict

from dask_rl.storage.layout import ArrayLayout
from dask_rl.storage.location import LocalDirectory

from .shard_file import ShardFile

_MOST = 1024
_SHARE = 4  # of the descriptors; the others are for connections, logs and what else a process opens
_numbers = itertools.count()
_open: "OrderedDict[int, tuple[weakref.ref[OpenShards], int, weakref.ref[ShardFile]]]" = OrderedDict()
"""All open files in the order of their opening: whose, which shard, and the file. Each call on it is atomic."""


class OpenShards:
    """The shard files that one reader holds open; safe to use from several threads.

    A file that another reader's opening pushes out closes when the last thread that reads it lets go.

    Args:
        location: the dataset.
        layout: the array.
    """

    def __init__(self, location: LocalDirectory, layout: ArrayLayout) -> None:
        """Nothing is opened before it is asked for."""
        self._location = location
        self._layout = layout
        self._files: dict[int, ShardFile] = {}

    def get(self, number: int) -> ShardFile:
        """Return shard `number`, open.

        Raises:
            CorruptDataError: the file is missing, or its index is damaged.
            DatasetError: it cannot be read, or is another one than when the dataset was opened.
        """
        # No lock on the way that nearly all reads take.
        return self._files.get(number) or self._add(number)

    def close(self) -> None:
        """Let go of all."""
        self._files.clear()

    def _add(self, number: int) -> ShardFile:
        shard = ShardFile(self._location, self._layout, number)
        # Two threads may come here at once: one of the two files closes.
        held = self._files.setdefault(number, shard)
        if held is shard:
            _register(self, shard)
        return held


def _register(owner: OpenShards, shard: ShardFile) -> None:
    key = next(_numbers)
    # The entry is gone with the file, whoever lets go of it.
    file = weakref.ref(shard, lambda _: _open.pop(key, None))
    _open[key] = weakref.ref(owner), shard.number, file
    while len(_open) > max_open():
        _, (other, number, _) = _open.popitem(last=False)
        if (them := other()) is not None:
            them._files.pop(number, None)


def max_open() -> int:
    """Return how many shard files a process keeps open: a quarter of the descriptors that it may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(min(soft // _SHARE, _MOST), 1)
