"""What a dataset under construction is to those who write it, wherever it grows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dask_rl.storage.encoding import EncodedShard
from dask_rl.storage.errors import DatasetError, explain
from dask_rl.storage.manifest import Commit

from .shard_store import Receipt


def check_objects(target: Any, sizes: Mapping[str, int], manifest: Commit) -> None:
    """Check that all that a manifest names is there, before it is published.

    Args:
        target: the dataset to be, for messages.
        sizes: of the files that are there, by key.
        manifest: what is to be published.

    Raises:
        DatasetError: naming a file that is not there, or has another size.
    """
    for key, entry in manifest.objects.items():
        if sizes.get(key) != entry.size:
            got = f"{sizes[key]} bytes" if key in sizes else "no such object"
            allowed = f"{entry.size} bytes as they were written"
            fix = "let nobody else write there, and run the same again"
            raise DatasetError(explain(f"{key} in dataset {target}", got=got, allowed=allowed, fix=fix))


class Shards(Protocol):
    """Where finished shards go. Picklable; several processes may write shards of the same content at once."""

    def require(self) -> None:
        """Check that this process can write there, and that the construction is still under way.

        Raises:
            DatasetError: it is not.
        """

    def find_receipt(self, shard: int, digests: Mapping[str, int] | None = None) -> Receipt | None:
        """Return the receipt of a finished shard if its files are there; one that does not hold is removed.

        Args:
            shard: which one.
            digests: of the rows that it must hold, by object; None where the marker tells.
        """

    def write_object(self, key: str, encoded: EncodedShard) -> None:
        """Write one shard file; after the return it is there for good."""

    def write_receipt(self, shard: int, receipt: Receipt) -> None:
        """Record that shard number `shard` of all arrays is finished."""


class Build(Protocol):
    """A dataset under construction, held by one writer at a time."""

    @property
    def target(self) -> Any:
        """The dataset to be, for messages."""

    @property
    def shards(self) -> Shards:
        """Where its shards go, once it has begun."""

    @property
    def store(self) -> Path:
        """A directory of this machine for the files that are no shards."""

    def start(self, content: Mapping[str, Any], *, shared: bool = False) -> None:
        """Begin or go on: finished shards stay only if they belong to the same content.

        Args:
            content: what is built, JSON-able.
            shared: whether processes other than this one write shards too.
        """

    def has_receipts(self) -> bool:
        """Whether any shard is finished, by this writer or by one before."""

    def commit(self, manifest: Commit) -> None:
        """Publish the dataset."""

    def abort(self) -> None:
        """Remove everything that is unfinished."""

    def close(self) -> None:
        """Let others write; what is finished stays for the next one."""
