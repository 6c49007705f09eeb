"""Opening a dataset: what must hold before anyone reads a row. Cheap: a directory walk and a few small files."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from .errors import CorruptDataError, DatasetError, DatasetNotFoundError, InvalidDataError, explain
from .layout import CRC_BYTES, ArrayLayout, parse_layout
from .location import REMEDY, Location
from .manifest import Commit, content_hash
from .nested import flatten_space
from .schema import (
    ACTIONS,
    ALLOWED_CODECS,
    ALLOWED_DTYPES,
    ATTRIBUTES_KEY,
    COMMIT_NAME,
    CORE_FIELDS,
    EPISODE_ENDS,
    META_DTYPES,
    METADATA_NAME,
    OBSERVATIONS,
    REWARDS,
    SCHEMA_VERSION,
    TERMINATIONS,
    TRUNCATIONS,
    ArraySpec,
    DatasetAttributes,
    first_problem,
    is_part_of,
)
from .spaces import Space, space_from_json

_MAX_CHUNK_BYTES = 1 << 30  # decoded: a small file must not make a reader reserve all memory
_FOREIGN_MARKS = (METADATA_NAME, ".zgroup", ".zattrs", ".zarray")


@dataclass(frozen=True)
class Contents:
    """What a dataset consists of, validated."""

    commit: Commit
    attributes: DatasetAttributes
    arrays: Mapping[str, ArraySpec]
    """By field."""
    layouts: Mapping[str, ArrayLayout | None]
    """By field; None where only zarr-python can read the array."""
    content_hash: str


def load_contents(location: Location) -> Contents:
    """Read and check the manifest, the attributes and the arrays' metadata.

    Raises:
        DatasetNotFoundError: there is nothing.
        DatasetError: there is something else, or a version that this release does not know.
        CorruptDataError: files are missing, or are not what was committed.
    """
    commit, content = _load_commit(location)
    _check_sizes(location, commit)
    if location.read(COMMIT_NAME) != content:  # the sizes may be those of another dataset of its name
        raise _corrupt(location, COMMIT_NAME, "another manifest than a moment ago", "a dataset that stays as it is")
    attributes = _load_attributes(location, commit)
    if (attributes.num_rows, attributes.num_episodes) != (commit.num_rows, commit.num_episodes):
        raise _corrupt(location, METADATA_NAME, f"{attributes.num_rows} rows", f"{commit.num_rows} rows")
    metadata = {
        key.removesuffix(f"/{METADATA_NAME}"): _load_json(location, commit, key)
        for key in sorted(commit.objects)
        if key.endswith(f"/{METADATA_NAME}")
    }
    metadata = {key: meta for key, meta in metadata.items() if meta.get("node_type") == "array"}
    arrays = {
        key.removeprefix("data/"): _check_array(location, commit, key, meta)
        for key, meta in metadata.items()
        if key.startswith("data/")
    }
    _check_fields(location, attributes, arrays)
    for key in META_DTYPES:
        if key not in metadata or metadata[key].get("shape") != [commit.num_episodes]:
            raise _corrupt(location, key, "no such array, or another length", f"{commit.num_episodes} episodes")
    layouts = {field: parse_layout(spec.key, metadata[spec.key]) for field, spec in arrays.items()}
    for layout in layouts.values():
        if layout is not None and layout.chunk_bytes > _MAX_CHUNK_BYTES:
            raise _corrupt(location, layout.key, f"chunks of {layout.chunk_bytes} bytes", f"at most {_MAX_CHUNK_BYTES}")
    return Contents(commit, attributes, arrays, layouts, content_hash(commit, attributes, metadata))


def load_meta(location: Location, commit: Commit, key: str) -> npt.NDArray[Any]:
    """Return one array on the episode axis; it is one chunk of plain bytes and a checksum.

    Raises:
        CorruptDataError: the file is not what was committed.
    """
    name = f"{key}/c/0"
    raw = _read_checked(location, commit, name)
    if len(raw) != commit.num_episodes * META_DTYPES[key].itemsize + CRC_BYTES:
        raise _corrupt(location, name, f"{len(raw)} bytes", f"{commit.num_episodes} episodes")
    column = np.frombuffer(raw[:-CRC_BYTES], META_DTYPES[key])
    if key == EPISODE_ENDS:
        lengths = np.diff(column, prepend=0)
        if (lengths < 2).any() or column[-1] != commit.num_rows:
            raise _corrupt(
                location, name, "ends that do not fit", f"ends at least 2 rows apart, the last {commit.num_rows}"
            )
    return column


def _load_commit(location: Location) -> tuple[Commit, bytes]:
    if not location.exists():
        raise DatasetNotFoundError(
            explain(f"dataset {location.url}", got="no such path", allowed="a dask-rl dataset", fix="check the path")
        )
    try:
        content = location.read(COMMIT_NAME)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _not_committed(location) from error
    try:
        raw = json.loads(content)
        version = raw["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _corrupt(location, COMMIT_NAME, "text that is no manifest", "the manifest as it was written") from error
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
        return Commit.model_validate(raw), content
    except ValidationError as error:
        raise _corrupt(location, COMMIT_NAME, first_problem(error), "the manifest as it was written") from error


def _not_committed(location: Location) -> DatasetError:
    try:
        ours = ATTRIBUTES_KEY in json.loads(location.read(METADATA_NAME))["attributes"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        ours = False
    if ours:
        return _corrupt(location, COMMIT_NAME, "no such file", "a dataset that was written to its end")
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
    sizes = location.sizes()
    for key, entry in sorted(commit.objects.items()):
        if sizes.get(key) != entry.size:
            got = f"{sizes[key]} bytes" if key in sizes else "no such file"
            raise _corrupt(location, key + _rows_of(key, commit), got, f"{entry.size} bytes")


def _rows_of(key: str, commit: Commit) -> str:
    """Return the rows that a shard holds, for a message."""
    array, separator, chunk = key.partition("/c/")
    number = chunk.split("/")[0]
    if not separator or not array.startswith("data/") or not number.isdecimal():
        return ""
    start = int(number) * commit.shard_rows
    stop = min(start + commit.shard_rows, commit.num_rows)
    return f" ({array.removeprefix('data/')}, rows {start} to {stop - 1})"


def _load_attributes(location: Location, commit: Commit) -> DatasetAttributes:
    raw = _load_json(location, commit, METADATA_NAME)
    try:
        return DatasetAttributes.model_validate(raw["attributes"][ATTRIBUTES_KEY])
    except (KeyError, TypeError) as error:
        raise _corrupt(location, METADATA_NAME, "no attribute dask_rl", "the attributes of a dataset") from error
    except ValidationError as error:
        raise _corrupt(location, METADATA_NAME, first_problem(error), "the attributes of schema 1") from error


def _check_array(location: Location, commit: Commit, key: str, meta: Mapping[str, Any]) -> ArraySpec:
    name = f"{key}/{METADATA_NAME}"
    try:
        dtype, shape = str(meta["data_type"]), [int(n) for n in meta["shape"]]
        grid = [int(n) for n in meta["chunk_grid"]["configuration"]["chunk_shape"]]
        codecs = set(_codec_names(meta["codecs"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _corrupt(location, name, "metadata that is incomplete", "the metadata of an array") from error
    if dtype not in ALLOWED_DTYPES:
        raise _corrupt(location, name, f"data type {dtype}", ", ".join(sorted(ALLOWED_DTYPES)))
    if codecs - ALLOWED_CODECS:
        raise _corrupt(location, name, f"codec {min(codecs - ALLOWED_CODECS)}", ", ".join(sorted(ALLOWED_CODECS)))
    if not shape or shape[0] != commit.num_rows or len(grid) != len(shape) or min(*shape, *grid) < 1:
        raise _corrupt(location, name, f"shape {shape} in shards {grid}", f"{commit.num_rows} rows")
    wanted = math.prod(-(-length // size) for length, size in zip(shape, grid, strict=True))
    found = sum(other.startswith(f"{key}/c/") for other in commit.objects)
    if found != wanted:
        raise _corrupt(location, key, f"{found} shards in commit.json", f"{wanted} shards for {shape[0]} rows")
    return ArraySpec(key.removeprefix("data/"), np.dtype(dtype).newbyteorder("<"), tuple(shape[1:]))


def _codec_names(codecs: Any) -> list[str]:
    names = []
    for codec in codecs:
        names.append(codec["name"])
        if codec["name"] == "sharding_indexed":
            names += _codec_names(codec["configuration"]["codecs"])
            names += _codec_names(codec["configuration"]["index_codecs"])
    return names


def _check_fields(location: Location, attributes: DatasetAttributes, arrays: Mapping[str, ArraySpec]) -> None:
    parts: dict[str, Space] = {}
    for field, space in ((OBSERVATIONS, attributes.observation_space), (ACTIONS, attributes.action_space)):
        try:
            parts |= flatten_space(field, space_from_json(space))
        except InvalidDataError as error:
            raise _corrupt(location, METADATA_NAME, str(error).rstrip("."), "spaces as they were written") from error
    for field in (*parts, REWARDS, TERMINATIONS, TRUNCATIONS):
        if field not in arrays:
            raise _corrupt(location, f"data/{field}", "no such array", ", ".join(CORE_FIELDS))
    for field in arrays:
        if field not in parts and (is_part_of(field, OBSERVATIONS) or is_part_of(field, ACTIONS)):
            raise _corrupt(location, f"data/{field}", "an array that is no part of its space", ", ".join(parts))
    for field, kind in ((REWARDS, "f"), (TERMINATIONS, "b"), (TRUNCATIONS, "b")):
        if arrays[field].row_shape or arrays[field].dtype.kind != kind:
            got = f"{arrays[field].dtype} rows of shape {arrays[field].row_shape}"
            raise _corrupt(location, f"data/{field}", got, "one float a row" if kind == "f" else "one bool a row")
    for field, part in parts.items():
        if arrays[field].row_shape != part.shape:
            raise _corrupt(location, f"data/{field}", f"rows of shape {arrays[field].row_shape}", f"{part.shape}")


def _load_json(location: Location, commit: Commit, key: str) -> dict[str, Any]:
    raw = _read_checked(location, commit, key)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _corrupt(location, key, "text that is no JSON", "the metadata as it was written") from error
    if not isinstance(value, dict):
        raise _corrupt(location, key, "JSON of another kind", "the metadata as it was written")
    return value


def _read_checked(location: Location, commit: Commit, key: str) -> bytes:
    if key not in commit.objects:
        raise _corrupt(location, COMMIT_NAME, f"no entry for {key}", "an entry for every file")
    raw = location.read(key)
    found, wanted = hashlib.sha256(raw).hexdigest(), commit.objects[key].sha256
    if found != wanted:
        raise _corrupt(location, key, f"sha256 {found[:12]}…", f"{wanted[:12]}… as committed")
    return raw


def _corrupt(location: Location, name: str, got: str, allowed: str) -> CorruptDataError:
    return CorruptDataError(explain(f"{name} in dataset {location.url}", got=got, allowed=allowed, fix=REMEDY))
