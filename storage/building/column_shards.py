"""All shards of episodes in memory: chunk by chunk, each checked, summed and written while it is in the cache."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs import zstd

from dask_rl.storage.encoding import ZSTD_LEVEL, Bytes, RawShard, compresses, digest_of
from dask_rl.storage.layout import ABSENT, CRC_BYTES, ArrayLayout, crc32c, encode_index
from dask_rl.storage.manifest import StoredObject
from dask_rl.storage.schema import ArraySpec, fill_value
from dask_rl.storage.spaces import Space
from dask_rl.storage.validation import EpisodeChecker, holds

from .assembly import content_of, plan_layouts, stored_objects
from .build import BuildDirectory
from .shard_store import Receipt
from .step_columns import StepColumns

Array = npt.NDArray[Any]
_WRITERS = 4
"""Arrays written at a time."""
_IN_FLIGHT = 3
"""Chunks of an array in memory: the sha256 of some is taken while others are checked and written."""


class ColumnShards:
    """Writes the shards of columns in memory: the same bytes as episode by episode, without the work for each episode.

    Args:
        steps: the episodes.
        specs: the arrays of the dataset.
        shard_rows: rows of a shard; None chooses.
        build: where the shards go, on this machine.
    """

    def __init__(
        self,
        steps: StepColumns,
        specs: Mapping[str, ArraySpec],
        observation_space: Space,
        action_space: Space,
        shard_rows: int | None,
        build: BuildDirectory,
    ) -> None:
        self.objects: dict[str, StoredObject] = {}
        self._steps = steps
        self._specs = specs
        self._build = build
        self._checker = EpisodeChecker(specs, observation_space, action_space)
        self._checker.columns(steps.episode(0), 0)  # names, shapes and types are those of all
        self._bounds = {path: _Bounds.of(*bounds) for path, bounds in self._checker.bounds.items()}
        self._layouts = plan_layouts(specs, shard_rows, steps.num_rows)

    def write(self) -> None:
        """Write all shards but those that an earlier run finished.

        Raises:
            InvalidDataError: naming the episode, the step, the field and the value.
            DatasetError: the disk refuses.
        """
        with ThreadPoolExecutor(max_workers=_WRITERS, thread_name_prefix="dask-rl-writer") as pool:
            self._layouts = dict(pool.map(self._with_compression, self._layouts))
            self._build.start(content_of(self._layouts))
            under_way: deque[Callable[[], Receipt]] = deque()
            for number in range(next(iter(self._layouts.values())).num_shards):
                under_way.append(self._begin_shard(number, pool))
                if len(under_way) > 1:  # so that no thread idles while the largest array of a shard is finished
                    self.objects |= stored_objects(under_way.popleft()())
            self.objects |= stored_objects(under_way.popleft()())

    def finish(self) -> dict[str, ArrayLayout]:
        """Return the layouts of all arrays."""
        return dict(self._layouts)

    def _begin_shard(self, number: int, pool: ThreadPoolExecutor) -> Callable[[], Receipt]:
        """Begin to write a shard of all arrays; return what waits for its end and gives the receipt."""
        shards = self._build.shards
        if shards.find_receipt(number) is not None:
            digests = dict(pool.map(lambda path: self._digest(number, path), self._layouts))
            receipt = shards.find_receipt(number, digests)
            if receipt is not None:
                return lambda: receipt
        arrays = pool.map(lambda path: self._write_array(number, path), self._layouts)

        def finish() -> Receipt:
            receipt = dict(arrays)
            shards.write_receipt(number, receipt)
            return receipt

        return finish

    def _digest(self, number: int, path: str) -> tuple[str, int]:
        chunks = self._chunks(number, path)
        return self._layouts[path].shard_key(number), digest_of([crc32c(chunk) for chunk in chunks])

    def _write_array(self, number: int, path: str) -> tuple[str, dict[str, Any]]:
        """Write one shard of one array; the file is written while it is made."""
        layout, shards = self._layouts[path], self._build.shards
        key = layout.shard_key(number)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="dask-rl-hasher") as hasher:
            coder = _ShardCoder(layout, hasher)
            shards.write_buffers(key, coder.encode(self._chunks(number, path)))
        return key, {"size": coder.size, "sha256": coder.sha256.hexdigest(), "digest": digest_of(coder.crcs)}

    def _chunks(self, number: int, path: str) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the inner chunks of a shard, checked; the last _IN_FLIGHT of them are valid."""
        layout = self._layouts[path]
        ring = deque(np.empty((layout.chunk_rows, *layout.row_shape), layout.dtype) for _ in range(_IN_FLIGHT))
        start = number * layout.shard_rows
        for row in range(start, min(start + layout.shard_rows, layout.num_rows), layout.chunk_rows):
            yield self._chunk(path, row, ring[0])
            ring.rotate()

    def _chunk(self, path: str, row: int, chunk: Array) -> npt.NDArray[np.uint8]:
        """Return the chunk from `row` on, checked: in `chunk`, or as a view of the source where that has its bytes."""
        stop = min(row + len(chunk), self._steps.num_rows)
        self._steps_checked(path, row, stop)
        stored = self._steps.stored_rows(path, row, stop, chunk.dtype)
        if stored is None or len(stored) < len(chunk):
            with np.errstate(over="ignore", invalid="ignore"):
                self._steps.fill(path, row, stop, chunk[: stop - row])
            chunk[stop - row :] = fill_value(chunk.dtype)
        else:
            chunk = stored
        if chunk.dtype.kind == "f" and not np.isfinite(chunk[: stop - row]).all():
            self._raise_fault(row, stop)
        return chunk.reshape(-1).view(np.uint8)

    def _steps_checked(self, path: str, start: int, stop: int) -> None:
        """Check the source's rows behind the dataset's rows [start, stop): what the type holds, and the bounds."""
        first, last = self._steps.source_rows(path, start, stop)
        rows, dtype = self._steps.columns[path][first:last], self._specs[path].dtype
        if not len(rows):
            return
        if rows.dtype != dtype:
            with np.errstate(over="ignore", invalid="ignore"):
                cast = rows.astype(dtype)
            # what becomes infinite is seen in the chunk, with what is not finite in the source
            if not dtype.kind == rows.dtype.kind == "f" and not holds(cast, rows).all():
                self._raise_fault(start, stop)
            rows = cast
        bounds = self._bounds.get(path)
        if bounds is not None and not bounds.hold(rows):
            self._raise_fault(start, stop)

    def _raise_fault(self, start: int, stop: int) -> None:
        """Find the fault in these rows, as the stream of episodes would."""
        ends = self._steps.row_ends
        for number in range(
            int(np.searchsorted(ends, start, side="right")), int(np.searchsorted(ends, stop, side="left")) + 1
        ):
            self._checker.columns(self._steps.episode(number), number)
        raise AssertionError(f"rows {start} to {stop - 1}: refused, and no episode of theirs is")

    def _with_compression(self, path: str) -> tuple[str, ArrayLayout]:
        """Choose the compression by those chunks of the first shard that a stream would choose it by."""
        layout = self._layouts[path]
        num_rows = min(layout.shard_rows, layout.num_rows)
        last = -(-num_rows // layout.chunk_rows) - 1
        chunks = [
            self._chunk(path, i * layout.chunk_rows, np.empty((layout.chunk_rows, *layout.row_shape), layout.dtype))
            for i in sorted({0, last // 2, last})
        ]
        padding = ((last + 1) * layout.chunk_rows - num_rows) * layout.row_bytes
        return path, replace(layout, compressed=compresses(RawShard(chunks, [], padding)))


@dataclass(frozen=True)
class _Bounds:
    """Smallest and largest elements of a column."""

    low: Any
    high: Any
    uniform: bool
    """Whether they are the same for all elements of a row."""

    @classmethod
    def of(cls, low: Any, high: Any) -> "_Bounds":
        """Take those that a space gives."""
        lows, highs = np.ravel(low), np.ravel(high)
        if (lows == lows[0]).all() and (highs == highs[0]).all():
            return cls(lows[0], highs[0], True)
        return cls(low, high, False)

    def hold(self, rows: Array) -> bool:
        """Whether all rows, at least one, are within; NaN never is."""
        if self.uniform:  # several times as fast as to compare each row with a row
            return bool(rows.min() >= self.low and rows.max() <= self.high)
        return bool(((rows >= self.low) & (rows <= self.high)).all())


class _ShardCoder:
    """Encodes one shard chunk by chunk.

    What it yields is to be written before the next is asked for. The sha256 is taken meanwhile, by a thread of
    `hasher`: it takes as long as all else together.
    """

    def __init__(self, layout: ArrayLayout, hasher: ThreadPoolExecutor) -> None:
        self.size = 0
        self.sha256 = hashlib.sha256()
        self.crcs: list[int] = []
        self._layout = layout
        self._hasher = hasher
        self._hashing: deque[Future[None]] = deque()

    def encode(self, chunks: Iterator[npt.NDArray[np.uint8]]) -> Iterator[Bytes]:
        """Yield the content of the file; then size, sha256 and crcs are complete."""
        layout = self._layout
        index = np.full((layout.chunks_per_shard, 2), ABSENT, "<u8")
        for i, chunk in enumerate(chunks):
            self.crcs.append(crc32c(chunk))
            body = np.frombuffer(zstd.compress(chunk, ZSTD_LEVEL), np.uint8) if layout.compressed else chunk
            checksum = crc32c(body) if layout.compressed else self.crcs[-1]
            index[i] = self.size, len(body) + CRC_BYTES
            yield from self._out(body.data, checksum.to_bytes(CRC_BYTES, "little"))
            self._settle(_IN_FLIGHT - 1)  # the next chunk takes the place of the first of so many
        yield from self._out(encode_index(index))
        self._settle(0)

    def _out(self, *parts: Bytes) -> Iterator[Bytes]:
        self._hashing.append(self._hasher.submit(self._hash, parts))
        for part in parts:
            self.size += len(part)
            yield part

    def _hash(self, parts: tuple[Bytes, ...]) -> None:
        for part in parts:
            self.sha256.update(part)

    def _settle(self, num_left: int) -> None:
        while len(self._hashing) > num_left:
            self._hashing.popleft().result()
