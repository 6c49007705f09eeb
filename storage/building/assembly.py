"""Rows to shards: buffers of one shard, filled from the stream and written when full."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.blocking import MAX_READ_BYTES, choose_chunk_rows, choose_shard_rows
from dask_rl.storage.encoding import compresses, cut_shard
from dask_rl.storage.errors import DatasetError, InvalidDataError, explain
from dask_rl.storage.layout import ArrayLayout
from dask_rl.storage.manifest import StoredObject
from dask_rl.storage.schema import SCHEMA_VERSION, ArraySpec

from .builds import Build
from .shard_store import Receipt
from .shard_task import copy_rows, write_shard

Array = npt.NDArray[Any]
_WRITERS = 4  # arrays written at a time: waiting for the disk dominates


class ShardAssembler:
    """Collects rows of all arrays and writes shard after shard, each once.

    Args:
        specs: the arrays on the time axis.
        shard_rows: rows of a shard; None chooses, and fits a short dataset.
        build: where the shards go.
    """

    def __init__(self, specs: Mapping[str, ArraySpec], shard_rows: int | None, build: Build) -> None:
        """Reserve the buffers."""
        self.objects: dict[str, StoredObject] = {}
        self._specs = specs
        self._fixed_rows = shard_rows
        self._build = build
        self._capacity = shard_rows or choose_shard_rows(specs.values())
        plan_layouts(specs, shard_rows, self._capacity)  # refuses what no reader takes before any work
        # Untouched pages cost nothing: a short dataset stays small in memory too.
        self._buffers = {path: np.empty((self._capacity, *spec.row_shape), spec.dtype) for path, spec in specs.items()}
        self._fill = 0
        self._num_shards = 0
        self._num_rows = 0
        self._is_whole = True
        self._layouts: dict[str, ArrayLayout] = {}

    def append(self, columns: Mapping[str, Array], num_rows: int) -> None:
        """Take `num_rows` rows; columns that are shorter are continued with zeros.

        Raises:
            DatasetError: the disk refuses, or did before.
        """
        self._check_whole()
        self._is_whole, done = False, 0
        while done < num_rows:
            rows = min(num_rows - done, self._capacity - self._fill)
            for path, column in columns.items():
                copy_rows(column, done, self._buffers[path][self._fill : self._fill + rows])
            self._fill += rows
            done += rows
            if self._fill == self._capacity:
                self._flush()
        self._is_whole = True

    def finish(self) -> dict[str, ArrayLayout]:
        """Write the rows that are left and return the layouts of all arrays.

        Raises:
            DatasetError: the disk refuses, or did before.
        """
        self._check_whole()
        if self._fill:
            self._flush()
        return {path: replace(layout, num_rows=self._num_rows) for path, layout in self._layouts.items()}

    def _check_whole(self) -> None:
        if not self._is_whole:
            got, allowed = "more after an episode that was written in part", "whole episodes"
            fix = "open a new writer and run the same again: finished shards are kept"
            raise DatasetError(explain(f"dataset {self._build.target}", got=got, allowed=allowed, fix=fix))

    def _flush(self) -> None:
        """Write one shard of all arrays, unless an earlier run did."""
        # The sizes are fixed when the first shard is full, or the data has come to its end before.
        layouts = self._layouts or plan_layouts(self._specs, self._fixed_rows, self._fill)
        raws = {path: cut_shard(layout, self._buffers[path], self._fill) for path, layout in layouts.items()}
        if not self._layouts:
            self._layouts = {
                path: replace(layout, compressed=compresses(raws[path])) for path, layout in layouts.items()
            }
            self._build.start(content_of(self._layouts))
        digests = {layout.shard_key(self._num_shards): raws[path].digest for path, layout in self._layouts.items()}
        receipt = self._build.shards.find_receipt(self._num_shards, digests)
        if receipt is None:
            with ThreadPoolExecutor(max_workers=_WRITERS) as pool:
                receipt = write_shard(self._build.shards, self._num_shards, self._layouts, raws, pool)
        self.objects |= stored_objects(receipt)
        self._num_shards += 1
        self._num_rows += self._fill
        self._fill = 0


def plan_layouts(specs: Mapping[str, ArraySpec], shard_rows: int | None, num_rows: int) -> dict[str, ArrayLayout]:
    """Return the layouts of all arrays, not compressed as yet.

    Args:
        specs: the arrays on the time axis.
        shard_rows: rows of a shard; None chooses.
        num_rows: rows of the dataset, or at least those of a full shard.

    Raises:
        InvalidDataError: rows so large that no reader takes their chunks.
    """
    rows = shard_rows or choose_shard_rows(specs.values(), num_rows)
    layouts = {
        path: ArrayLayout(
            key=spec.key,
            dtype=spec.dtype,
            row_shape=spec.row_shape,
            num_rows=num_rows,
            shard_rows=rows,
            chunk_rows=choose_chunk_rows(spec, rows),
            compressed=False,
        )
        for path, spec in specs.items()
    }
    for path, layout in layouts.items():
        if layout.chunk_bytes > MAX_READ_BYTES:
            got, allowed = f"chunks of {layout.chunk_bytes} bytes", f"at most {MAX_READ_BYTES}"
            fix = (
                "make its rows smaller, or leave it out" if layout.chunk_rows == 1 else "leave shard_rows to be chosen"
            )
            raise InvalidDataError(explain(path, got=got, allowed=allowed, fix=fix))
    return layouts


def content_of(layouts: Mapping[str, ArrayLayout]) -> dict[str, Any]:
    """Return what tells shards of one layout from those of another, JSON-able."""
    arrays = [asdict(replace(layout, num_rows=0)) for layout in layouts.values()]
    return {"schema": SCHEMA_VERSION, "arrays": [{**array, "dtype": array["dtype"].str} for array in arrays]}


def stored_objects(receipt: Receipt) -> dict[str, StoredObject]:
    """Return the files of a finished shard, as the manifest lists them."""
    return {key: StoredObject(size=entry["size"], sha256=entry["sha256"]) for key, entry in receipt.items()}
