"""commit.json: what a dataset consists of. Written last; without it there is no dataset."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from .schema import METADATA_NAME, DatasetAttributes

_ARRAY_IDENTITY = ("shape", "data_type", "chunk_grid", "codecs", "fill_value")


class StoredObject(BaseModel):
    """One file of the dataset."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    size: int = Field(ge=1)
    """In bytes."""
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """Of the whole file. A CRC would not do: that of bytes with their own CRC behind them is the same for all bytes."""


def _inside(key: str) -> str:
    path = PurePosixPath(key)
    if path.is_absolute() or ".." in path.parts or str(path) != key:
        raise ValueError(f"object {key!r} lies outside the dataset")
    return key


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
    """Rows of a shard, the same for all arrays."""
    objects: dict[Annotated[str, AfterValidator(_inside)], StoredObject]
    """All files but commit.json, by their place in the dataset."""

    def to_bytes(self) -> bytes:
        """Return the file's content: sorted, one object a line."""
        fields = self.model_dump(by_alias=True)
        objects = fields.pop("objects")
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(objects[key])}" for key in sorted(objects))
        head = json.dumps(fields, indent=1)[1:-1].strip()
        return f'{{\n {head},\n "objects": {{\n{lines}\n }}\n}}\n'.encode()


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
