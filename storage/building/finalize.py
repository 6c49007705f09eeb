"""The finaliser: the metadata of a dataset whose shards are on disk, written by zarr-python."""

import hashlib
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec
from zarr.errors import ZarrUserWarning
from zarr.storage import LocalStore

from dask_rl.storage.encoding import ZSTD_LEVEL
from dask_rl.storage.layout import ArrayLayout
from dask_rl.storage.manifest import StoredObject
from dask_rl.storage.schema import ATTRIBUTES_KEY, ArraySpec, DatasetAttributes, fill_value


def write_metadata(store: Path, attributes: DatasetAttributes, layouts: Mapping[str, ArrayLayout]) -> zarr.Group:
    """Write the root group and the metadata of all arrays on the time axis, around their shards."""
    root = zarr.create_group(
        LocalStore(store),
        zarr_format=3,
        attributes={ATTRIBUTES_KEY: attributes.model_dump(by_alias=True, mode="json")},
    )
    for path, layout in layouts.items():
        zstd = [ZstdCodec(level=ZSTD_LEVEL)] if layout.compressed else []
        root.create_array(
            layout.key,
            shape=(layout.num_rows, *layout.row_shape),
            shards=(layout.shard_rows, *layout.row_shape),
            chunks=(layout.chunk_rows, *layout.row_shape),
            dtype=layout.dtype,
            serializer=BytesCodec(endian="little" if layout.dtype.itemsize > 1 else None),
            compressors=[*zstd, Crc32cCodec()],
            fill_value=fill_value(layout.dtype),
            dimension_names=ArraySpec(path, layout.dtype, layout.row_shape).dimension_names,
            config={"write_empty_chunks": True},
        )
    return root


def write_meta_arrays(root: zarr.Group, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write the arrays on the episode axis, each in one chunk, and consolidate once."""
    for key, column in columns.items():
        array = root.create_array(
            key,
            shape=column.shape,
            chunks=column.shape,
            dtype=column.dtype,
            compressors=[Crc32cCodec()],
            fill_value=fill_value(column.dtype),
            dimension_names=("episode",),
            config={"write_empty_chunks": True},
        )
        array[:] = column
    with warnings.catch_warnings():
        # Consolidated metadata is an extension that zarr-python and xarray read, and others ignore.
        warnings.simplefilter("ignore", ZarrUserWarning)
        zarr.consolidate_metadata(root.store)


def clear_all_but(store: Path, shards: Mapping[str, StoredObject]) -> None:
    """Remove what an earlier run left: shards beyond this one's end, and metadata if it died while finalising."""
    for key in list(_files(store)):
        if key not in shards:
            (store / key).unlink()


def collect_objects(store: Path, shards: Mapping[str, StoredObject]) -> dict[str, StoredObject]:
    """Return all files of the store. Shards are on the disk; the build flushes the others when it commits."""
    keys = sorted(set(_files(store)) - shards.keys())
    contents = {key: (store / key).read_bytes() for key in keys}
    found = {key: StoredObject(size=len(it), sha256=hashlib.sha256(it).hexdigest()) for key, it in contents.items()}
    return {**shards, **found}


def _files(store: Path) -> Iterable[str]:
    for directory, _, names in os.walk(store):
        for name in names:
            yield (Path(directory) / name).relative_to(store).as_posix()
