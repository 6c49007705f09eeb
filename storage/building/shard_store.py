"""The shards of a dataset under construction and their receipts, written by one process or by many at once.

ROOT/build.json         what is being built; another content starts from nothing
     receipts/K.json    shard K of all arrays is on disk, with these sizes and checksums
     tmp/               files being written
     store/             becomes the dataset
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dask_rl.storage.encoding import Bytes, EncodedShard
from dask_rl.storage.errors import DatasetError, explain
from dask_rl.storage.files import make_directory, write_atomically, write_stream

from .write_errors import explained_write_errors

Receipt = dict[str, dict[str, Any]]
"""By the object's key: its size, its sha256 and the digest of its raw rows."""


@dataclass(frozen=True)
class ShardStore:
    """Where finished shards go. Picklable; shards of the same content may be written by several processes at once."""

    root: Path
    """The directory of all this."""
    target: Path
    """The dataset to be, for messages."""

    @property
    def store(self) -> Path:
        """The directory that becomes the dataset."""
        return self.root / "store"

    def prepare(self, marker: bytes) -> None:
        """Begin or go on: finished shards stay only if the same was being built.

        Args:
            marker: what is being built.
        """
        path = self.root / "build.json"
        shutil.rmtree(self.root / "tmp", ignore_errors=True)
        make_directory(self.root / "tmp")
        if not path.exists() or path.read_bytes() != marker:
            shutil.rmtree(self.root / "receipts", ignore_errors=True)
            shutil.rmtree(self.store, ignore_errors=True)
            self.write_file(path, [marker], flush=False)  # an empty one after a loss of power is another content
        make_directory(self.root / "receipts")
        make_directory(self.store)

    def require(self) -> None:
        """Check that this process sees the directory.

        Raises:
            DatasetError: it does not: it runs elsewhere, or what it belonged to is over.
        """
        if not self.store.is_dir():
            raise DatasetError(
                explain(
                    f"cannot write dataset {self.target}",
                    got=f"no directory {self.store} where this task runs",
                    allowed="a directory that all workers see",
                    fix="write to a file system that the workers share",
                )
            )

    def find_receipt(self, shard: int, digests: Mapping[str, int] | None = None) -> Receipt | None:
        """Return the receipt of a finished shard if its files are there; one that does not hold is removed.

        Were it left, it would vouch for the files that are written next, whose sizes may be the same.

        Args:
            shard: which one.
            digests: of the rows that it must hold, by object; None where the marker tells.
        """
        path = self._receipt_path(shard)
        try:
            receipt: Receipt = json.loads(path.read_bytes())
            found = {key: int(entry["digest"]) for key, entry in receipt.items()}
            complete = all((self.store / key).stat().st_size == entry["size"] for key, entry in receipt.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            complete = False  # a damaged receipt is as good as none: the shard is written again
        if complete and digests in (None, found):
            return receipt
        with explained_write_errors(self.target):
            path.unlink(missing_ok=True)
        return None

    def write_object(self, key: str, encoded: EncodedShard) -> None:
        """Write one shard file; after the return its bytes survive a loss of power."""
        with explained_write_errors(self.target):
            self._make_directory(key)
            self.write_file(self.store / key, encoded.buffers)

    def write_buffers(self, key: str, parts: Iterable[Bytes]) -> None:
        """Write one shard file as its parts are made; each is written before the next is asked for."""
        with explained_write_errors(self.target):
            self._make_directory(key)
            write_stream(self.store / key, parts, self.root / "tmp")

    def _make_directory(self, key: str) -> None:
        directory = self.store
        for part in Path(key).parent.parts:  # never the store itself: it may have become the dataset meanwhile
            directory = directory / part
            with suppress(FileExistsError):
                directory.mkdir()

    def write_receipt(self, shard: int, receipt: Receipt) -> None:
        """Record that shard number `shard` of all arrays is finished."""
        with explained_write_errors(self.target):
            # Not flushed: one that is lost with the power costs one shard, written again.
            self.write_file(self._receipt_path(shard), [json.dumps(receipt).encode()], flush=False)

    def write_file(self, path: Path, buffers: Iterable[Bytes], *, flush: bool = True) -> None:
        """Write a file, there complete or not at all; see `write_atomically`."""
        write_atomically(path, buffers, self.root / "tmp", flush=flush)

    def _receipt_path(self, shard: int) -> Path:
        return self.root / "receipts" / f"{shard}.json"
