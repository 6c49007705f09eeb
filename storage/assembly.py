"""Rows to shards: buffers of one shard, filled from the stream and written when full."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .blocking import choose_chunk_rows, choose_shard_rows
from .build import BuildDirectory
from .encoding import RawShard, compresses, cut_shard, encode_shard
from .layout import ArrayLayout
from .manifest import StoredObject
from .schema import SCHEMA_VERSION, ArraySpec

Array = npt.NDArray[Any]
_WRITERS = 4  # arrays written at a time: waiting for the disk dominates


class ShardAssembler:
    """Collects rows of all arrays and writes shard after shard, each once.

    Args:
        specs: the arrays on the time axis.
        shard_rows: rows of a shard; None chooses, and fits a short dataset.
        build: where the shards go.
    """

    def __init__(self, specs: Mapping[str, ArraySpec], shard_rows: int | None, build: BuildDirectory) -> None:
        """Reserve the buffers."""
        self.objects: dict[str, StoredObject] = {}
        self._specs = specs
        self._fixed_rows = shard_rows
        self._build = build
        self._capacity = shard_rows or choose_shard_rows(specs.values())
        # Untouched pages cost nothing: a short dataset stays small in memory too.
        self._buffers = {path: np.empty((self._capacity, *spec.row_shape), spec.dtype) for path, spec in specs.items()}
        self._fill = 0
        self._num_shards = 0
        self._num_rows = 0
        self._layouts: dict[str, ArrayLayout] = {}

    def append(self, columns: Mapping[str, Array], num_rows: int) -> None:
        """Take `num_rows` rows; columns that are shorter are continued with zeros."""
        done = 0
        while done < num_rows:
            rows = min(num_rows - done, self._capacity - self._fill)
            for path, column in columns.items():
                part = column[done : done + rows]
                target = self._buffers[path][self._fill : self._fill + rows]
                target[: len(part)] = part
                target[len(part) :] = 0
            self._fill += rows
            done += rows
            if self._fill == self._capacity:
                self._flush()

    def finish(self) -> dict[str, ArrayLayout]:
        """Write the rows that are left and return the layouts of all arrays."""
        if self._fill:
            self._flush()
        return {path: replace(layout, num_rows=self._num_rows) for path, layout in self._layouts.items()}

    def _flush(self) -> None:
        """Write one shard of all arrays, unless an earlier run did."""
        layouts = self._layouts or self._plan_layouts()
        raws = {path: cut_shard(layout, self._buffers[path], self._fill) for path, layout in layouts.items()}
        if not self._layouts:
            self._layouts = {
                path: replace(layout, compressed=compresses(raws[path])) for path, layout in layouts.items()
            }
            self._build.start(self._content())
        keys = {path: layout.shard_key(self._num_shards) for path, layout in self._layouts.items()}
        receipt = self._build.find_receipt(self._num_shards, {keys[path]: raws[path].digest for path in raws})
        if receipt is None:
            with ThreadPoolExecutor(max_workers=_WRITERS) as pool:
                entries = pool.map(lambda path: self._write_shard(path, keys[path], raws[path]), keys)
                receipt = dict(zip(keys.values(), entries, strict=True))
            self._build.write_receipt(self._num_shards, receipt)
        for key, entry in receipt.items():
            self.objects[key] = StoredObject(size=entry["size"], sha256=entry["sha256"])
        self._num_shards += 1
        self._num_rows += self._fill
        self._fill = 0

    def _write_shard(self, path: str, key: str, raw: RawShard) -> dict[str, Any]:
        encoded = encode_shard(self._layouts[path], raw)
        self._build.write_object(key, encoded)
        return {"size": encoded.size, "sha256": encoded.sha256, "digest": raw.digest}

    def _plan_layouts(self) -> dict[str, ArrayLayout]:
        """Fix the sizes when the first shard is full, or the data has come to its end before."""
        rows = self._fixed_rows or choose_shard_rows(self._specs.values(), self._fill)
        return {
            path: ArrayLayout(
                key=spec.key,
                dtype=spec.dtype,
                row_shape=spec.row_shape,
                num_rows=self._fill,
                shard_rows=rows,
                chunk_rows=choose_chunk_rows(spec, rows),
                compressed=False,
            )
            for path, spec in self._specs.items()
        }

    def _content(self) -> dict[str, Any]:
        arrays = [asdict(replace(layout, num_rows=0)) for layout in self._layouts.values()]
        return {"schema": SCHEMA_VERSION, "arrays": [{**a, "dtype": a["dtype"].str} for a in arrays]}
