"""Opening a dataset: what must hold before anyone reads a row. Cheap: a directory walk and a few small files."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from dask_rl.storage.errors import DatasetError, DatasetNotFoundError, explain
from dask_rl.storage.layout import CRC_BYTES, ArrayLayout
from dask_rl.storage.location import Location, unreadable
from dask_rl.storage.manifest import Commit, Part, content_hash, keeps_files_of
from dask_rl.storage.schema import (
    COMMIT_NAME,
    EPISODE_ENDS,
    META_DTYPES,
    METADATA_NAME,
    SCHEMA_VERSION,
    ArraySpec,
    DatasetAttributes,
    first_problem,
    is_ours,
)

from .part_contents import PartContents, corrupt_file, load_part, read_checked

_MOMENT_SECONDS = 0.02
_OPENINGS = 8  # a dataset that is replaced meanwhile is opened anew so often
_FOREIGN_MARKS = (METADATA_NAME, ".zgroup", ".zattrs", ".zarray")


@dataclass(frozen=True)
class Contents:
    """What a dataset consists of, validated."""

    commit: Commit
    attributes: DatasetAttributes
    arrays: Mapping[str, ArraySpec]
    """By field."""
    parts: tuple[PartContents, ...]
    """What was written first, and the segments that were appended."""
    content_hash: str

    @property
    def layouts(self) -> Mapping[str, ArrayLayout]:
        """Of what was written first, by field."""
        return self.parts[0].layouts


def load_contents(location: Location, wanted_hash: str | None = None) -> Contents:
    """Read and check the manifest, the attributes and the arrays' metadata.

    Args:
        location: the dataset.
        wanted_hash: content hash of the generation that is wanted; None: the newest one.

    Raises:
        DatasetNotFoundError: there is nothing.
        DatasetError: there is something else, a version that this release does not know, or no such generation.
        CorruptDataError: files are missing, or are not what was committed.
    """
    content, last = _read_if_there(location, COMMIT_NAME), None
    for _ in range(_OPENINGS):
        try:
            return _load(location, content, wanted_hash)
        except (DatasetError, OSError) as error:
            now = _read_if_there(location, COMMIT_NAME)
            if isinstance(error, DatasetNotFoundError) and now is None and location.is_unfinished():
                time.sleep(_MOMENT_SECONDS)  # between the two renames of an overwriting
                last, now = error, _read_if_there(location, COMMIT_NAME)
            elif now == content:
                if isinstance(error, OSError):
                    raise unreadable(f"dataset {location.url}", error) from error
                raise
            content = now  # another dataset took its place: no damage
            location.forget()
    if content is None and last is not None:
        raise last
    raise DatasetError(
        explain(
            f"dataset {location.url}",
            got=f"another one at each of {_OPENINGS} looks",
            allowed="a dataset that stays as it is while it is opened",
            fix="open it when it is not written",
        )
    )


def _load(location: Location, content: bytes | None, wanted_hash: str | None) -> Contents:
    commit = _parse_commit(location, content)
    _check_sizes(location, commit)
    now = _read_if_there(location, COMMIT_NAME)
    if now != content and not keeps_files_of(now, commit):  # the sizes may be those of another dataset of its name
        got, allowed = "another manifest than a moment ago", "a dataset that stays as it is"
        raise corrupt_file(location, COMMIT_NAME, got, allowed)
    location.will_read([key for key in commit.objects if key.endswith(METADATA_NAME)])
    parts = tuple(load_part(location, commit, part) for part in commit.parts)
    for other in parts[1:]:
        _check_alike(location, parts[0], other)
    newest = _join(location, commit, parts)
    if wanted_hash in (None, newest.content_hash):
        return newest
    for number in reversed(range(len(commit.segments))):
        earlier = _join(location, commit.earlier(number), parts[: number + 1])
        if earlier.content_hash == wanted_hash:
            return earlier
    raise DatasetError(
        explain(
            f"dataset {location.url}",
            got=f"content hash {newest.content_hash[:12]}",
            allowed=f"{str(wanted_hash)[:12]}, which was asked for",
            fix="restore that dataset, or start anew",
        )
    )


def _join(location: Location, commit: Commit, parts: tuple[PartContents, ...]) -> Contents:
    first = parts[0].attributes
    provenance = dict(first.provenance)
    if len(parts) > 1:
        provenance["appended"] = [part.attributes.provenance for part in parts[1:]]
    attributes = first.model_copy(
        update={
            "num_steps": sum(part.attributes.num_steps for part in parts),
            "num_episodes": sum(part.attributes.num_episodes for part in parts),
            "provenance": provenance,
        }
    )
    metadata = {key: meta for part in parts for key, meta in part.metadata.items()}
    try:
        identity = content_hash(commit, attributes, metadata)
    except ValueError as error:
        got, allowed = "numbers that JSON lacks", "the metadata as it was written"
        raise corrupt_file(location, METADATA_NAME, got, allowed) from error
    return Contents(commit, attributes, parts[0].arrays, parts, identity)


def load_meta(location: Location, commit: Commit, key: str) -> npt.NDArray[Any]:
    """Return one array on the episode axis; in each part it is one chunk of plain bytes and a checksum.

    Raises:
        CorruptDataError: a file is not what was committed.
    """
    columns = [_load_part_meta(location, commit, part, key) for part in commit.parts]
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _load_part_meta(location: Location, commit: Commit, part: Part, key: str) -> npt.NDArray[Any]:
    name = f"{part.prefix}{key}/c/0"
    raw = read_checked(location, commit, name)
    if len(raw) != part.num_episodes * META_DTYPES[key].itemsize + CRC_BYTES:
        raise corrupt_file(location, name, f"{len(raw)} bytes", f"{part.num_episodes} episodes")
    column = np.frombuffer(raw[:-CRC_BYTES], META_DTYPES[key])
    if key != EPISODE_ENDS:
        return column
    lengths = np.diff(column, prepend=0)
    if (lengths < 2).any() or column[-1] != part.num_rows:
        allowed = f"ends at least 2 rows apart, the last {part.num_rows}"
        raise corrupt_file(location, name, "ends that do not fit", allowed)
    return column + part.first_row if part.first_row else column


def _parse_commit(location: Location, content: bytes | None) -> Commit:
    if content is None:
        if location.exists():
            raise _not_committed(location)
        fix = "run again what was writing it" if location.is_unfinished() else "check the path"
        raise DatasetNotFoundError(
            explain(f"dataset {location.url}", got="no such path", allowed="a dask-rl dataset", fix=fix)
        )
    allowed = "the manifest as it was written"
    try:
        raw = json.loads(content)
        version = raw["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise corrupt_file(location, COMMIT_NAME, "text that is no manifest", allowed) from error
    if version != SCHEMA_VERSION:
        raise DatasetError(
            explain(
                f"dataset {location.url}",
                got=f"schema version {version!r}",
                allowed=SCHEMA_VERSION,
                fix="use the release of dask-rl that wrote it, or import the source again",
            )
        )
    try:
        return Commit.model_validate(raw)
    except ValidationError as error:
        raise corrupt_file(location, COMMIT_NAME, first_problem(error), allowed) from error


def _read_if_there(location: Location, key: str) -> bytes | None:
    try:
        return location.read(key)
    except FileNotFoundError:
        return None


def _not_committed(location: Location) -> DatasetError:
    if location.is_unfinished():
        got, fix = "a dataset that is not complete", "run again what writes it, or wait for it"
        return DatasetError(explain(f"dataset {location.url}", got=got, allowed="a complete one", fix=fix))
    try:
        ours = is_ours(location.read(METADATA_NAME))
    except (OSError, DatasetError):
        ours = False
    if ours:
        return corrupt_file(location, COMMIT_NAME, "no such file", "a dataset that was written to its end")
    marks = [mark for mark in _FOREIGN_MARKS if _has(location, mark)]
    return DatasetError(
        explain(
            f"dataset {location.url}",
            got="a Zarr store of another kind" if marks else "something that is no Zarr store",
            allowed="a dask-rl dataset",
            fix="import it first: dask-rl data import SOURCE DEST",
        )
    )


def _has(location: Location, key: str) -> bool:
    try:
        location.read(key)
    except OSError:
        return False
    return True


def _check_sizes(location: Location, commit: Commit) -> None:
    sizes = location.sizes(commit.objects)
    for key, entry in sorted(commit.objects.items()):
        if sizes.get(key) != entry.size:
            got = f"{sizes[key]} bytes" if key in sizes else "no such file"
            raise corrupt_file(location, key + rows_of(key, commit), got, f"{entry.size} bytes")


def rows_of(key: str, commit: Commit) -> str:
    """Return the array and the rows that a shard holds, for a message; nothing of other files."""
    part = next(part for part in reversed(commit.parts) if key.startswith(part.prefix))
    array, separator, chunk = key.removeprefix(part.prefix).partition("/c/")
    number = chunk.split("/")[0]
    if not separator or not array.startswith("data/") or not number.isdecimal():
        return ""
    start = int(number) * part.shard_rows
    stop = min(start + part.shard_rows, part.num_rows)
    rows = f"rows {part.first_row + start} to {part.first_row + stop - 1}"
    return f" ({array.removeprefix('data/')}, {rows})"


def _check_alike(location: Location, first: PartContents, other: PartContents) -> None:
    """Check that a segment holds rows of the same kind."""
    name = other.part.prefix + METADATA_NAME
    if other.arrays != first.arrays:
        different = {field for field in first.arrays.keys() | other.arrays.keys()
                     if first.arrays.get(field) != other.arrays.get(field)}  # fmt: skip
        raise corrupt_file(location, name, f"other arrays of {', '.join(sorted(different))}", "those of the dataset")
    for field in ("observation_space", "action_space"):
        if getattr(first.attributes, field) != getattr(other.attributes, field):
            raise corrupt_file(location, name, f"another {field}", "that of the dataset")
