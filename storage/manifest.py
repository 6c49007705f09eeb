"""commit.json: what a dataset consists of. Written last; without it there is no dataset."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from .schema import METADATA_NAME, DatasetAttributes

SEGMENTS = "segments"
MAX_SEGMENTS = 9999
_ARRAY_IDENTITY = ("shape", "data_type", "chunk_grid", "codecs", "fill_value")


class StoredObject(BaseModel):
    """One file of the dataset."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    size: int = Field(ge=1)
    """In bytes."""
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """Of the whole file. A CRC would not do: that of bytes with their own CRC behind them is the same for all bytes."""


def segment_prefix(number: int) -> str:
    """Return what the keys of the files of segment `number` ≥ 1 begin with."""
    return f"{SEGMENTS}/{number:04d}/"


def _inside(key: str) -> str:
    path = PurePosixPath(key)
    if path.is_absolute() or ".." in path.parts or str(path) != key:
        raise ValueError(f"object {key!r} lies outside the dataset")
    return key


class Segment(BaseModel):
    """What one appending added. Segments are written once and never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    num_rows: int = Field(ge=2)
    """Length of its time axis."""
    num_episodes: int = Field(ge=1)
    """Number of its episodes."""
    shard_rows: int = Field(ge=1)
    """Rows of a shard, the same for all its arrays."""


@dataclass(frozen=True)
class Part:
    """Where one segment, or what was written first, lies in the dataset."""

    prefix: str
    """Of its files' keys: nothing, or `segments/0001/`."""
    first_row: int
    first_episode: int
    num_rows: int
    num_episodes: int
    shard_rows: int


class Commit(BaseModel):
    """The manifest of one generation of a dataset."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)

    schema_version: Literal[1] = Field(default=1, alias="schema")
    """Version of the layout."""
    generation: int = Field(default=1, ge=1)
    """Counts the manifests of this dataset."""
    num_rows: int = Field(ge=2)
    """Length of the time axis."""
    num_episodes: int = Field(ge=1)
    """Number of episodes."""
    shard_rows: int = Field(ge=1)
    """Rows of a shard, the same for all arrays that were written first."""
    segments: tuple[Segment, ...] = Field(default=(), max_length=MAX_SEGMENTS)
    """What was appended since, in order: `segments/0001`, `segments/0002`, …"""
    objects: dict[Annotated[str, AfterValidator(_inside)], StoredObject]
    """All files but commit.json, by their place in the dataset."""

    @model_validator(mode="after")
    def _check_segments(self) -> Self:
        first = self.parts[0]
        if first.num_rows < 2 or first.num_episodes < 1:
            raise ValueError("segments have more rows than the dataset")
        if self.generation != 1 + len(self.segments):
            raise ValueError(f"generation {self.generation} of a dataset with {len(self.segments)} segments")
        return self

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What was written first, and the segments, in the order of their rows."""
        rows = self.num_rows - sum(segment.num_rows for segment in self.segments)
        episodes = self.num_episodes - sum(segment.num_episodes for segment in self.segments)
        parts = [Part("", 0, 0, rows, episodes, self.shard_rows)]
        for number, segment in enumerate(self.segments, 1):
            last = parts[-1]
            first_row, first_episode = last.first_row + last.num_rows, last.first_episode + last.num_episodes
            parts.append(Part(segment_prefix(number), first_row, first_episode, **segment.model_dump()))
        return tuple(parts)

    def appended(self, segment: "Commit") -> "Commit":
        """Return the manifest of the next generation.

        Args:
            segment: the manifest of what is appended, as if it were a dataset of its own.
        """
        prefix = segment_prefix(len(self.segments) + 1)
        size = {"num_rows": segment.num_rows, "num_episodes": segment.num_episodes, "shard_rows": segment.shard_rows}
        return Commit(
            generation=self.generation + 1,
            num_rows=self.num_rows + segment.num_rows,
            num_episodes=self.num_episodes + segment.num_episodes,
            shard_rows=self.shard_rows,
            segments=(*self.segments, Segment(**size)),
            objects={**self.objects, **{prefix + key: entry for key, entry in segment.objects.items()}},
        )

    def earlier(self, num_segments: int) -> "Commit":
        """Return the manifest of the generation that had so many segments: theirs are the files, unchanged."""
        dropped = tuple(segment_prefix(number) for number in range(num_segments + 1, len(self.segments) + 1))
        last = self.parts[num_segments]
        return Commit(
            generation=self.generation - len(dropped),
            num_rows=last.first_row + last.num_rows,
            num_episodes=last.first_episode + last.num_episodes,
            shard_rows=self.shard_rows,
            segments=self.segments[:num_segments],
            objects={key: entry for key, entry in self.objects.items() if not key.startswith(dropped)},
        )

    def to_bytes(self) -> bytes:
        """Return the file's content: sorted, one object a line."""
        fields = self.model_dump(by_alias=True)
        objects = fields.pop("objects")
        if not self.segments:
            del fields["segments"]  # so that manifests without any are those that all releases know
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(objects[key])}" for key in sorted(objects))
        head = json.dumps(fields, indent=1)[1:-1].strip()
        return f'{{\n {head},\n "objects": {{\n{lines}\n }}\n}}\n'.encode()


def keeps_files_of(content: bytes | None, commit: Commit) -> bool:
    """Whether a manifest of this content lists all files of `commit` as they are: the same one, or a later one."""
    try:
        found = Commit.model_validate_json(content or b"")
    except ValidationError:
        return False
    return commit.objects.items() <= found.objects.items()


def content_hash(commit: Commit, attributes: DatasetAttributes, array_metadata: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the identity of the data: a sha256 over all data objects, the arrays' types and the attributes.

    Provenance is left out, and so is the wording of the metadata files, which differs between versions of zarr.
    """
    arrays = {key: {name: meta.get(name) for name in _ARRAY_IDENTITY} for key, meta in array_metadata.items()}
    objects = {
        key: [entry.size, entry.sha256]
        for key, entry in commit.objects.items()
        if PurePosixPath(key).name != METADATA_NAME
    }
    identity = {
        "objects": objects,
        "arrays": arrays,
        "attributes": attributes.model_dump(by_alias=True, exclude={"provenance"}),
    }
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
