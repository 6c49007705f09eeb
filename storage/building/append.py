"""Appending: a segment is built beside its dataset, moved into it, and then named in a new manifest.

Until that manifest is in place, which is one step, readers see the dataset as it was; files that no manifest names are
nobody's. Those that an earlier manifest names are never touched.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePosixPath

from dask_rl.storage.errors import DatasetError, DatasetNotFoundError, explain
from dask_rl.storage.files import fsync_path, make_directory
from dask_rl.storage.location import LocalDirectory
from dask_rl.storage.manifest import MAX_SEGMENTS, Commit, segment_prefix
from dask_rl.storage.reading.contents import Contents, load_contents
from dask_rl.storage.schema import COMMIT_NAME, METADATA_NAME

from .build import BuildDirectory, fsync_all_but_shards
from .write_errors import explained_write_errors

_INTENT = "appending.json"


class AppendDirectory(BuildDirectory):
    """The hidden sibling of a dataset in which a segment grows; held by one writer at a time.

    Raises:
        DatasetNotFoundError: there is no dataset to append to.
        DatasetError: another writer is at work, or the place cannot be written.
        CorruptDataError: the dataset is damaged.
    """

    _appended: str | None = None
    """Digest of the segment that this run, or one that died, has appended."""

    def __init__(self, target: Path) -> None:
        """Take the directory, and look at the dataset."""
        super().__init__(target, overwrite=False)
        try:
            self._manifest = (target / COMMIT_NAME).read_bytes()
            self.base: Contents = load_contents(LocalDirectory(target))
            if len(self.base.commit.segments) == MAX_SEGMENTS:
                fix = "write it anew: its segments become one"
                raise DatasetError(
                    explain(f"dataset {target}", got=f"{MAX_SEGMENTS} segments", allowed="no more", fix=fix)
                )
            self._appended = self._appended_before()
        except BaseException:
            self.close()
            raise

    def commit(self, manifest: Commit) -> None:
        """Move the segment into the dataset and replace its manifest; nothing is done twice.

        Args:
            manifest: of the segment, as if it were a dataset of its own.

        Raises:
            DatasetError: the dataset was replaced meanwhile, or the disk refuses.
        """
        if _digest(manifest) == self._appended:  # a run before this one died after its last step
            self._end()
            return
        following = self.base.commit.appended(manifest)
        place = self.target / segment_prefix(len(following.segments))
        with explained_write_errors(self.target):
            self._check_objects(manifest)
            fsync_all_but_shards(self.store)
            intent = {"generation": following.generation, "objects": _digest(manifest)}
            self.shards.write_file(self.path / _INTENT, [json.dumps(intent).encode()])
            fsync_path(self.path)
            make_directory(place.parent)
            self._check_unchanged()  # at the last moment: what is removed here is named by no manifest
            shutil.rmtree(place, ignore_errors=True)  # left by one that died before its manifest was in place
            os.rename(self.store, place)
            fsync_path(place.parent)
            fsync_path(self.target)
            self.shards.write_file(self.target / COMMIT_NAME, [following.to_bytes()])
            self._appended = _digest(manifest)
            fsync_path(self.target)
        self._end()

    def abort(self) -> None:
        """Remove everything that is unfinished; what tells of a segment in place stays for the same run again."""
        if self._appended is None:
            super().abort()
        elif self._lock is not None:
            self._clear()
            self.close()

    def _end(self) -> None:
        """Remove everything, and last what tells that the segment is in place."""
        self._clear()
        super().abort()

    def _clear(self) -> None:
        with suppress(OSError):
            self._clear_all_but(self._kept)

    @property
    def _kept(self) -> Collection[str]:
        return (*super()._kept, _INTENT)

    def _check_target(self) -> None:
        if not self.target.exists() and not (self.path / "old").exists():
            raise DatasetNotFoundError(
                explain(f"dataset {self.target}", got="no such path", allowed="a dataset", fix="import one first")
            )

    def _check_unchanged(self) -> None:
        """The lock keeps our own writers away, not somebody's copy of another dataset over this one."""
        if (self.target / COMMIT_NAME).read_bytes() != self._manifest:
            raise DatasetError(
                explain(
                    f"dataset {self.target}",
                    got="another manifest than when the appending began",
                    allowed="a dataset that stays as it is meanwhile",
                    fix="append again",
                )
            )

    def _appended_before(self) -> str | None:
        """Return the digest of what a run that died appended last, if it did come to its manifest."""
        try:
            intent = json.loads((self.path / _INTENT).read_bytes())
            committed = intent["generation"] == self.base.commit.generation
            return str(intent["objects"]) if committed else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _digest(segment: Commit) -> str:
    """Return what tells a segment from others: its data, not the wording of its metadata."""
    objects = {
        key: [entry.size, entry.sha256]
        for key, entry in segment.objects.items()
        if PurePosixPath(key).name != METADATA_NAME
    }
    return hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()
