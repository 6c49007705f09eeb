"""Replay buffers in Zarr v2, as diffusion-policy and UMI read them: `data/*` and `meta/episode_ends`.

One row a step. A path that ends with `.zip` becomes a zip file of the same group.
"""

import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
import zarr.storage

from dask_rl.storage.blocking import choose_block_rows
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.schema import ACTIONS, INFOS_PREFIX, OBSERVATIONS, REWARDS, ArraySpec

from . import lost
from .base import Progress

_CHUNK_BYTES = 2**20
_OBSERVATION = "obs"
_ACTION = "action"
_REWARD = "reward"
_MARKER = "meta/episode_ends/.zarray"
_MEMBERS = {".zgroup", ".zattrs", ".zmetadata", "data", "meta"}


class ReplayBufferExporter:
    """Writes observations, actions and, unless all are 0, rewards."""

    name = "zarr-v2"

    def check(self, dataset: OfflineDataset) -> None:
        """Refuse nested actions, and parts of observations whose names would collide."""
        _columns(dataset)

    def is_export(self, path: Path) -> bool:
        """Whether this is such a group, a directory or a zip file; see `Exporter`."""
        if path.is_dir():
            return (path / _MARKER).is_file() and set(os.listdir(path)) <= _MEMBERS
        if not (path.name.lower().endswith(".zip") and zipfile.is_zipfile(path)):
            return False
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        return _MARKER in names and {name.partition("/")[0] for name in names} <= _MEMBERS

    def write(self, dataset: OfflineDataset, path: Path, name: str, progress: Progress) -> tuple[str, ...]:
        """Write the group; see `Exporter`."""
        zipped = name.lower().endswith(".zip")
        folder = path.with_name(f"{path.name}-group") if zipped else path
        root = zarr.create_group(zarr.storage.LocalStore(folder), zarr_format=2)
        data, meta = root.create_group("data"), root.create_group("meta")
        columns = _columns(dataset)
        if not any(rewards.any() for _, rewards in _steps(dataset, REWARDS)):
            columns.pop(_REWARD)
        for number, (column, field) in enumerate(columns.items()):
            _write(data, column, dataset, field)
            progress((number + 1) * dataset.num_episodes // len(columns), dataset.num_episodes)
        ends = np.cumsum(dataset.episode_lengths, dtype=np.int64)
        _create(meta, "episode_ends", ends.shape, ends.dtype, len(ends))[:] = ends
        if zipped:
            _zip(folder, path)
            shutil.rmtree(folder)
        return tuple(_lost(dataset))


def _columns(dataset: OfflineDataset) -> dict[str, str]:
    """Return {name in the buffer: field}."""
    observed = [field for field in dataset.arrays if field == OBSERVATIONS or field.startswith(f"{OBSERVATIONS}/")]
    names = {
        field.removeprefix(OBSERVATIONS).lstrip("/").replace("/", ".") or _OBSERVATION: field for field in observed
    }
    taken = sorted({_ACTION, _REWARD, "actions", "rewards"} & names.keys())
    if ACTIONS not in dataset.arrays or taken or len(names) != len(observed):
        got = "nested actions" if ACTIONS not in dataset.arrays else f"observations named {', '.join(taken) or 'alike'}"
        allowed = "one array of actions, and names of observations other than those of actions and rewards"
        raise ConfigError(explain(f"dataset {dataset.path}", got=got, allowed=allowed, fix="choose another format"))
    return {**names, _ACTION: ACTIONS, _REWARD: REWARDS}


def _write(group: Any, name: str, dataset: OfflineDataset, field: str) -> None:
    """Write a field chunk by chunk: a chunk that was written in parts would be compressed again for each."""
    spec = dataset.arrays[field]
    chunk_rows = max(1, min(_CHUNK_BYTES // max(1, spec.row_bytes), dataset.num_steps))
    array = _create(group, name, (dataset.num_steps, *spec.row_shape), spec.dtype, chunk_rows)
    kept: list[Any] = []
    num_kept = start = 0
    for last, rows in _steps(dataset, field):
        kept, num_kept = [*kept, rows], num_kept + len(rows)
        ready = num_kept if last else num_kept - num_kept % chunk_rows
        if ready:
            joined = np.concatenate(kept)
            array[start : start + ready] = joined[:ready]
            kept, num_kept, start = [joined[ready:]], num_kept - ready, start + ready


def _steps(dataset: OfflineDataset, field: str) -> Iterator[tuple[bool, Any]]:
    """Yield the rows of a field that are steps, in blocks, and whether a block is the last."""
    spec: ArraySpec = dataset.arrays[field]
    for start, stop in dataset.block_ranges(choose_block_rows(spec.row_bytes, dataset.shard_rows)):
        yield stop >= dataset.num_rows, dataset.read(field, start, stop)[dataset.step_mask(start, stop)]


def _create(group: Any, name: str, shape: tuple[int, ...], dtype: Any, chunk_rows: int) -> Any:
    return group.create_array(
        name,
        shape=shape,
        chunks=(chunk_rows, *shape[1:]),
        dtype=dtype,
        fill_value=0,
        compressors=numcodecs.Blosc("zstd", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE),
        config={"write_empty_chunks": True},  # a chunk that is not there cannot be told from a lost one
    )


def _zip(folder: Path, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder).as_posix())


def _lost(dataset: OfflineDataset) -> Iterator[str]:
    if num_final := int(dataset.has_final_observation.sum()):
        yield f"{num_final} final observations"
    if num_terminated := int(dataset.episode_terminations.sum()):
        yield f"{num_terminated} terminations: all episodes look alike"
    if infos := [field for field in dataset.arrays if field.startswith(INFOS_PREFIX)]:
        yield f"the infos {', '.join(infos)}"
    if (dataset.episode_seeds >= 0).any():
        yield f"{int((dataset.episode_seeds >= 0).sum())} seeds"
    for found in (lost.standardised, lost.spaces, lost.environment, lost.ref_scores, lost.episode_ids):
        yield from found(dataset)
