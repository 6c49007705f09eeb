"""A dataset under construction behind a URL: objects in place, receipts beside, commit.json last.

NAME.zarr/                      shards, then metadata, then commit.json: nobody reads it before
NAME.zarr.partial/writer.json   who writes; see remote_claim.py
                  build.json    what is being built; another content starts from nothing
                  receipts-CONTENT/K.json  shard K of all arrays is there, with these sizes and checksums
"""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dask_rl.storage.encoding import EncodedShard
from dask_rl.storage.errors import DatasetError, explain
from dask_rl.storage.manifest import Commit
from dask_rl.storage.remote.claim import CLAIM_NAME, ClaimTicket, WriterClaim
from dask_rl.storage.remote.directory import BUILD_NAME, NOTES_SUFFIX, RemoteDirectory
from dask_rl.storage.schema import COMMIT_NAME, METADATA_NAME, is_ours

from .builds import check_objects
from .shard_store import Receipt

_CLEARING = b"null"  # what is built while everything is removed


@dataclass(frozen=True)
class RemoteShards:
    """Where finished shards go. Picklable; shards of the same content may be written by several processes at once."""

    data: RemoteDirectory
    ticket: ClaimTicket
    content: str
    """Digest of what is built: late tasks of a dead driver know another one."""

    def require(self) -> None:
        """Raise DatasetError where the writer that this belongs to does not hold the place any more."""
        self.ticket.check()

    def find_receipt(self, shard: int, digests: Mapping[str, int] | None = None) -> Receipt | None:
        """Return the receipt of a finished shard if its objects are there; one that does not hold is removed.

        Args:
            shard: which one.
            digests: of the rows that it must hold, by object; None where the marker tells.
        """
        key = self._receipt_key(shard)
        try:
            receipt: Receipt = json.loads(self.ticket.notes.read(key))
            found = {key: int(entry["digest"]) for key, entry in receipt.items()}
            sizes = {key: int(entry["size"]) for key, entry in receipt.items()}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, DatasetError):
                raise
            holds = False  # a damaged receipt is as good as none: the shard is written again
        else:
            holds = digests in (None, found) and self.data.sizes_of(sizes) == sizes
        if holds:
            return receipt
        self.ticket.notes.delete([key])  # it would vouch for what is written next, whose sizes may be the same
        return None

    def write_object(self, key: str, encoded: EncodedShard) -> None:
        """Write one shard; never over what another writer committed."""
        try:
            self.data.put(key, encoded.buffers, create=True)
        except FileExistsError:
            # Of a run that died before its receipt. Where it is another writer's, the place is not ours any more.
            self.require()
            self.data.put(key, encoded.buffers)

    def write_receipt(self, shard: int, receipt: Receipt) -> None:
        """Record that shard number `shard` of all arrays is finished."""
        self.ticket.notes.put(self._receipt_key(shard), [json.dumps(receipt).encode()])

    def _receipt_key(self, shard: int) -> str:
        return f"receipts-{self.content}/{shard}.json"


class RemoteBuild:
    """A dataset that grows at its URL, held by one writer at a time.

    An existing dataset that is to be overwritten stays until the first shard of the new one is to be written; then
    its commit.json is removed first. Those who read it meanwhile get a DatasetError, never rows of the new one.

    Raises:
        DatasetError: the dataset exists already, another writer is at work, or the place cannot be written.
    """

    def __init__(self, url: str, overwrite: bool) -> None:
        """Take the place, with what an interrupted writer left in it."""
        self._data = RemoteDirectory(url)
        self._notes = self._data.beside(NOTES_SUFFIX)
        self._overwrite = overwrite
        self.target = self._data.url
        self._shards: RemoteShards | None = None
        if not self._data.can_list:
            fix = "write it here, and copy it to where the server reads"
            got = "the URL of a web server"
            raise DatasetError(explain(f"dataset {self.target}", got=got, allowed="a place to write to", fix=fix))
        self._check_target()
        self._claim = WriterClaim(self._notes, self.target)
        self._local = tempfile.TemporaryDirectory(prefix="dask-rl-", ignore_cleanup_errors=True)
        self._closed = False

    @property
    def shards(self) -> RemoteShards:
        """Where its shards go, once it has begun."""
        if self._shards is None:
            raise RuntimeError("start comes first")
        return self._shards

    @property
    def store(self) -> Path:
        """A directory of this machine for the files that are no shards."""
        return Path(self._local.name)

    def start(self, content: Mapping[str, Any], *, shared: bool = False) -> None:
        """Begin or go on: finished shards stay only if they belong to the same content.

        Args:
            content: what is built, JSON-able.
            shared: whether processes other than this one write shards too; here that makes no difference.
        """
        marker = json.dumps(content, sort_keys=True).encode()
        self._claim.ticket.check()
        self._check_target()
        if self._read(BUILD_NAME) != marker or self._data.has(COMMIT_NAME):
            self._clear()
            self._notes.put(BUILD_NAME, [marker])
        digest = hashlib.sha256(marker).hexdigest()[:16]
        self._shards = RemoteShards(self._data, self._claim.ticket, digest)
        self._notes.will_read(key for key in self._notes.sizes() if key.startswith(f"receipts-{digest}/"))

    def has_receipts(self) -> bool:
        """Whether any shard is finished, by this writer or by one before."""
        return any(key.startswith("receipts-") for key in self._notes.sizes())

    def commit(self, manifest: Commit) -> None:
        """Write the metadata, check that every object is there, and write the manifest last: the first writer wins."""
        for path in sorted(path for path in self.store.rglob("*") if path.is_file()):
            self._data.put(path.relative_to(self.store).as_posix(), [path.read_bytes()])
        sizes = self._data.sizes()
        self._claim.ticket.check()
        self._data.delete(sizes.keys() - manifest.objects.keys() - {COMMIT_NAME})
        check_objects(self.target, sizes, manifest)
        content = manifest.to_bytes()
        try:
            self._data.put(COMMIT_NAME, [content], create=True)
        except FileExistsError:
            if self._data.read(COMMIT_NAME) != content:
                raise self._exists("another writer's dataset, which was complete first") from None
        self._clear_notes()
        self.close()

    def abort(self) -> None:
        """Remove everything that is unfinished."""
        if not self._closed:
            with suppress(DatasetError):  # the place is not ours any more, or not to be reached
                self._claim.ticket.check()
                if self._read(BUILD_NAME) is not None and not self._data.has(COMMIT_NAME):
                    self._data.delete(self._data.sizes())
                self._clear_notes()
        self.close()

    def close(self) -> None:
        """Let others write; what is finished stays for the next one."""
        if not self._closed:
            self._closed = True
            self._local.cleanup()
            self._claim.release()

    def _clear(self) -> None:
        """Remove what another content left, and the dataset that is overwritten: what tells of it first."""
        self._notes.put(BUILD_NAME, [_CLEARING])
        self._clear_notes(but=BUILD_NAME)
        self._data.delete([COMMIT_NAME])
        self._data.delete(self._data.sizes())

    def _clear_notes(self, but: str = "") -> None:
        """Remove the notes, and the one that says that something is under construction last."""
        keys = self._notes.sizes().keys() - {CLAIM_NAME, BUILD_NAME}
        self._notes.delete(keys)
        if but != BUILD_NAME:
            self._notes.delete([BUILD_NAME])

    def _check_target(self) -> None:
        if self._data.has(COMMIT_NAME):
            if not self._overwrite:
                raise self._exists("a dataset that exists already")
        elif self._read(BUILD_NAME) is None and self._data.sizes():
            if not self._overwrite:
                raise self._exists("objects that exist already")
            if not self._is_ours():
                raise DatasetError(
                    explain(
                        f"dataset {self.target}",
                        got="something that is no dask-rl dataset",
                        allowed="a dataset to overwrite",
                        fix="choose another URL; nothing was removed",
                    )
                )

    def _exists(self, got: str) -> DatasetError:
        fix = "choose another URL, or overwrite it (overwrite=True, --overwrite)"
        return DatasetError(explain(f"dataset {self.target}", got=got, allowed="a new URL", fix=fix))

    def _is_ours(self) -> bool:
        try:
            return is_ours(self._data.read(METADATA_NAME))
        except FileNotFoundError:
            return False

    def _read(self, key: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return self._notes.read(key)
        return None
