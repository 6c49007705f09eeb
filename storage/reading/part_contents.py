"""What was written at once, a dataset or a segment of one: its attributes and arrays, checked against the manifest."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from dask_rl.storage.blocking import MAX_READ_BYTES, MAX_SHARD_ROWS
from dask_rl.storage.errors import CorruptDataError, InvalidDataError, explain
from dask_rl.storage.layout import CRC_BYTES, ArrayLayout, parse_layout
from dask_rl.storage.location import REMEDY, Location
from dask_rl.storage.manifest import SEGMENTS, Commit, Part
from dask_rl.storage.nested import flatten_space
from dask_rl.storage.schema import (
    ACTIONS,
    ALLOWED_CODECS,
    ALLOWED_DTYPES,
    ATTRIBUTES_KEY,
    COMMIT_NAME,
    CORE_FIELDS,
    META_DTYPES,
    METADATA_NAME,
    OBSERVATIONS,
    REWARDS,
    TERMINATIONS,
    TRUNCATIONS,
    ArraySpec,
    DatasetAttributes,
    first_problem,
    is_part_of,
)
from dask_rl.storage.spaces import Space, space_from_json

from .shard_index import corrupt_chunks


@dataclass(frozen=True)
class PartContents:
    """One part of a dataset, validated."""

    part: Part
    attributes: DatasetAttributes
    """Of this part alone."""
    arrays: Mapping[str, ArraySpec]
    """By field."""
    layouts: Mapping[str, ArrayLayout]
    """By field."""
    metadata: Mapping[str, Mapping[str, Any]]
    """Of all its arrays, by their keys in the dataset."""


def load_part(location: Location, commit: Commit, part: Part) -> PartContents:
    """Read and check the attributes and the arrays' metadata of one part.

    Raises:
        CorruptDataError: they are not what was committed, or do not fit together.
    """
    attributes = _load_attributes(location, commit, part)
    if (attributes.num_rows, attributes.num_episodes) != (part.num_rows, part.num_episodes):
        name = part.prefix + METADATA_NAME
        raise corrupt_file(location, name, f"{attributes.num_rows} rows", f"{part.num_rows} rows")
    metadata = {
        key.removesuffix(f"/{METADATA_NAME}"): _load_json(location, commit, key)
        for key in sorted(commit.objects)
        if key.endswith(f"/{METADATA_NAME}") and _is_in(key, part)
    }
    metadata = {key: meta for key, meta in metadata.items() if meta.get("node_type") == "array"}
    arrays = {
        key.removeprefix(f"{part.prefix}data/"): _check_array(location, part, key, meta)
        for key, meta in metadata.items()
        if key.startswith(f"{part.prefix}data/")
    }
    _check_fields(location, part, attributes, arrays)
    for key in (part.prefix + key for key in META_DTYPES):
        if key not in metadata or metadata[key].get("shape") != [part.num_episodes]:
            raise corrupt_file(location, key, "no such array, or another length", f"{part.num_episodes} episodes")
    layouts = {field: _layout(location, commit, part, spec, metadata) for field, spec in arrays.items()}
    return PartContents(part, attributes, arrays, layouts, metadata)


def _is_in(key: str, part: Part) -> bool:
    return key.startswith(part.prefix) if part.prefix else not key.startswith(f"{SEGMENTS}/")


def _load_attributes(location: Location, commit: Commit, part: Part) -> DatasetAttributes:
    name = part.prefix + METADATA_NAME
    raw = _load_json(location, commit, name)
    try:
        return DatasetAttributes.model_validate(raw["attributes"][ATTRIBUTES_KEY])
    except (KeyError, TypeError) as error:
        raise corrupt_file(location, name, "no attribute dask_rl", "the attributes of a dataset") from error
    except ValidationError as error:
        raise corrupt_file(location, name, first_problem(error), "the attributes of schema 1") from error


def _layout(
    location: Location, commit: Commit, part: Part, spec: ArraySpec, metadata: Mapping[str, Mapping[str, Any]]
) -> ArrayLayout:
    key = part.prefix + spec.key
    layout = parse_layout(key, metadata[key])
    if layout is None:  # others have no checksums, or fill values in place of chunks that are lost
        got, allowed = "an array that is stored in another way", "shards whose every chunk has a checksum, as written"
        raise corrupt_file(location, key, got, allowed)
    if layout.chunk_bytes > MAX_READ_BYTES:
        raise corrupt_file(location, key, f"chunks of {layout.chunk_bytes} bytes", f"at most {MAX_READ_BYTES}")
    if layout.shard_rows != part.shard_rows or layout.shard_rows > MAX_SHARD_ROWS:
        allowed = f"{part.shard_rows} as in commit.json, at most {MAX_SHARD_ROWS}"
        raise corrupt_file(location, key, f"shards of {layout.shard_rows} rows", allowed)
    found = sum(other.startswith(f"{key}/c/") for other in commit.objects)
    if found != layout.num_shards:
        got, allowed = f"{found} shards in commit.json", f"{layout.num_shards} shards for {layout.num_rows} rows"
        raise corrupt_file(location, key, got, allowed)
    layout = replace(layout, first_row=part.first_row)
    for number in range(layout.num_shards):
        _check_shard(location, commit, layout, number)
    return layout


def _check_shard(location: Location, commit: Commit, layout: ArrayLayout, number: int) -> None:
    """Check that a file of this size can hold the rows: what is read of it never depends on metadata alone."""
    name, chunks = layout.shard_key(number), layout.chunks_in_shard(number)
    if name not in commit.objects:
        raise corrupt_file(location, COMMIT_NAME, f"no entry for {name}", "an entry for every file")
    size = commit.objects[name].size
    exact = layout.index_bytes + chunks * (layout.chunk_bytes + CRC_BYTES)
    least = layout.index_bytes + chunks * (CRC_BYTES + 1)
    if size < least if layout.compressed else size != exact:
        allowed = f"at least {least}" if layout.compressed else f"{exact}"
        got, allowed = f"{size} bytes in commit.json", f"{allowed} for {chunks} chunks"
        raise corrupt_chunks(location, layout, number, range(layout.chunks_per_shard), got, allowed)


def _check_array(location: Location, part: Part, key: str, meta: Mapping[str, Any]) -> ArraySpec:
    name = f"{key}/{METADATA_NAME}"
    try:
        dtype, shape = str(meta["data_type"]), [int(n) for n in meta["shape"]]
        codecs = set(_codec_names(meta["codecs"]))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise corrupt_file(location, name, "metadata that is incomplete", "the metadata of an array") from error
    if dtype not in ALLOWED_DTYPES:
        raise corrupt_file(location, name, f"data type {dtype}", ", ".join(sorted(ALLOWED_DTYPES)))
    if codecs - ALLOWED_CODECS:
        raise corrupt_file(location, name, f"codec {min(codecs - ALLOWED_CODECS)}", ", ".join(sorted(ALLOWED_CODECS)))
    if not shape or shape[0] != part.num_rows or min(shape) < 1:
        raise corrupt_file(location, name, f"shape {shape}", f"{part.num_rows} rows")
    field = key.removeprefix(f"{part.prefix}data/")
    return ArraySpec(field, np.dtype(dtype).newbyteorder("<"), tuple(shape[1:]))


def _codec_names(codecs: Any) -> list[str]:
    names = []
    for codec in codecs:
        names.append(codec["name"])
        if codec["name"] == "sharding_indexed":
            names += _codec_names(codec["configuration"]["codecs"])
            names += _codec_names(codec["configuration"]["index_codecs"])
    return names


def _check_fields(
    location: Location, part: Part, attributes: DatasetAttributes, arrays: Mapping[str, ArraySpec]
) -> None:
    parts: dict[str, Space] = {}
    for field, space in ((OBSERVATIONS, attributes.observation_space), (ACTIONS, attributes.action_space)):
        try:
            parts |= flatten_space(field, space_from_json(space))
        except InvalidDataError as error:
            name, got = part.prefix + METADATA_NAME, str(error).rstrip(".")
            raise corrupt_file(location, name, got, "spaces as they were written") from error

    def fault(field: str, got: str, allowed: str) -> CorruptDataError:
        return corrupt_file(location, f"{part.prefix}data/{field}", got, allowed)

    for field in (*parts, REWARDS, TERMINATIONS, TRUNCATIONS):
        if field not in arrays:
            raise fault(field, "no such array", ", ".join(CORE_FIELDS))
    for field in arrays:
        if field not in parts and (is_part_of(field, OBSERVATIONS) or is_part_of(field, ACTIONS)):
            raise fault(field, "an array that is no part of its space", ", ".join(parts))
    for field, kind in ((REWARDS, "f"), (TERMINATIONS, "b"), (TRUNCATIONS, "b")):
        if arrays[field].row_shape or arrays[field].dtype.kind != kind:
            got = f"{arrays[field].dtype} rows of shape {arrays[field].row_shape}"
            raise fault(field, got, "one float a row" if kind == "f" else "one bool a row")
    for field, leaf in parts.items():
        if arrays[field].row_shape != leaf.shape:
            raise fault(field, f"rows of shape {arrays[field].row_shape}", f"{leaf.shape}")


def _load_json(location: Location, commit: Commit, key: str) -> dict[str, Any]:
    raw = read_checked(location, commit, key)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise corrupt_file(location, key, "text that is no JSON", "the metadata as it was written") from error
    if not isinstance(value, dict):
        raise corrupt_file(location, key, "JSON of another kind", "the metadata as it was written")
    return value


def read_checked(location: Location, commit: Commit, key: str) -> bytes:
    """Return a whole file that is what was committed.

    Raises:
        CorruptDataError: it is not.
    """
    if key not in commit.objects:
        raise corrupt_file(location, COMMIT_NAME, f"no entry for {key}", "an entry for every file")
    try:
        raw = location.read(key)
    except FileNotFoundError as error:
        raise corrupt_file(location, key, "no such file", f"{commit.objects[key].size} bytes") from error
    found, wanted = hashlib.sha256(raw).hexdigest(), commit.objects[key].sha256
    if found != wanted:
        raise corrupt_file(location, key, f"sha256 {found[:12]}…", f"{wanted[:12]}… as committed")
    return raw


def corrupt_file(location: Location, name: str, got: str, allowed: str) -> CorruptDataError:
    """Return the error for a file that is not what it should be."""
    return CorruptDataError(explain(f"{name} in dataset {location.url}", got=got, allowed=allowed, fix=REMEDY))
