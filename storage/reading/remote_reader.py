"""Rows of one array from shard files elsewhere: few ranged requests, many in flight, every chunk checked."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.errors import CorruptDataError
from dask_rl.storage.layout import CRC_BYTES, ArrayLayout, crc32c
from dask_rl.storage.manifest import Commit
from dask_rl.storage.remote.directory import RemoteDirectory
from dask_rl.storage.remote.requests import run_all

from .reader import prepare_output
from .shard_index import ShardIndex, corrupt_chunks

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

REQUEST_BYTES = 8 << 20
"""Bytes of one request at most, unless one chunk has more."""
GAP_BYTES = 256 << 10
"""Bytes between two chunks that are read and dropped rather than asked for separately."""
_MAX_INDICES = 4096
_HELD_BYTES = 16 << 20


@dataclass(frozen=True)
class _Piece:
    """A part of one chunk that was asked for, and where it goes."""

    chunk: int
    skip: int
    """Bytes of the chunk before it."""
    target: Bytes


@dataclass(frozen=True)
class _Request:
    """Pieces whose chunks come with one answer."""

    shard: ShardIndex
    pieces: tuple[_Piece, ...]
    start: int
    stop: int


class RemoteShardReader:
    """The direct reader of an array elsewhere whose layout it knows; safe to use from several threads.

    Chunks of which a part was asked for are kept for a while: rows next to each other are mostly asked for next.

    Args:
        location: the dataset.
        layout: the array.
        commit: the manifest, which knows the size of every file.
    """

    def __init__(self, location: RemoteDirectory, layout: ArrayLayout, commit: Commit) -> None:
        """Nothing is asked before the first read."""
        self.layout = layout
        self._location = location
        self._commit = commit
        self._lock = threading.Lock()
        self._indices: OrderedDict[int, ShardIndex] = OrderedDict()
        self._held: OrderedDict[tuple[int, int], Bytes] = OrderedDict()
        self._max_held = _HELD_BYTES // max(layout.chunk_bytes, 1)

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Return the rows [start, stop).

        Args:
            start: first row.
            stop: one after the last row.
            out: (stop - start, *row_shape) in the array's dtype, contiguous; filled and returned.

        Raises:
            CorruptDataError: stored bytes are not what was written; names file, array, rows and remedy.
            StoreAccessError: credentials do not suffice any more.
            StoreUnreachableError: the store does not answer.
            DatasetError: it is another dataset than when it was opened.
        """
        layout = self.layout
        out = prepare_output(start, stop, layout.num_rows, layout.row_shape, layout.dtype, out)
        missing: dict[int, list[_Piece]] = {}
        for number, piece in self._pieces(start, stop, out.reshape(-1).view(np.uint8)):
            if not self._from_held(number, piece):
                missing.setdefault(number, []).append(piece)
        if missing:
            try:
                requests = self._plan(missing)
                for _ in run_all(self._fetch, requests):
                    pass
            except CorruptDataError:
                self._location.check_current(self._commit)  # another dataset is no damage
                raise
            self._location.check_current(self._commit)
        return out

    def close(self) -> None:
        """Drop what is kept; a later read asks again."""
        with self._lock:
            self._indices.clear()
            self._held.clear()

    def stored_chunks(self, number: int) -> npt.NDArray[np.bool_]:
        """Return which inner chunks shard `number` stores, (chunks_per_shard,); for verification."""
        return self._load_indices([number])[number].stored

    def _pieces(self, start: int, stop: int, flat: Bytes) -> Iterator[tuple[int, _Piece]]:
        """Yield the shard's number and the part of every chunk that holds some of the rows."""
        layout, row = self.layout, start
        while row < stop:
            number, in_shard = divmod(row, layout.shard_rows)
            chunk, skip = divmod(in_shard, layout.chunk_rows)
            rows = min(layout.chunk_rows - skip, stop - row)
            at = (row - start) * layout.row_bytes
            target = flat[at : at + rows * layout.row_bytes]
            yield number, _Piece(chunk, skip * layout.row_bytes, target)
            row += rows

    def _plan(self, missing: dict[int, list[_Piece]]) -> list[_Request]:
        """Join chunks that lie next to each other to requests."""
        indices = self._load_indices(missing)
        requests: list[_Request] = []
        for number, pieces in missing.items():
            shard = indices[number]
            for piece in pieces:
                shard.require(piece.chunk)
            group: list[_Piece] = []
            start = stop = 0
            for piece in sorted(pieces, key=lambda piece: shard.offsets[piece.chunk]):
                begin = shard.offsets[piece.chunk]
                end = begin + shard.lengths[piece.chunk]
                if group and (begin - stop > GAP_BYTES or end - start > REQUEST_BYTES):
                    requests.append(_Request(shard, tuple(group), start, stop))
                    group = []
                if not group:
                    start = stop = begin
                stop = max(stop, end)
                group.append(piece)
            requests.append(_Request(shard, tuple(group), start, stop))
        return requests

    def _load_indices(self, numbers: Iterable[int]) -> dict[int, ShardIndex]:
        with self._lock:
            known = {number: self._indices[number] for number in numbers if number in self._indices}
            for number in known:
                self._indices.move_to_end(number)
        unknown = [number for number in numbers if number not in known]
        for index in run_all(self._fetch_index, unknown):
            known[index.number] = index
        with self._lock:
            for number in unknown:
                self._indices[number] = known[number]
            while len(self._indices) > _MAX_INDICES:
                self._indices.popitem(last=False)
        return known

    def _fetch_index(self, number: int) -> ShardIndex:
        layout, key = self.layout, self.layout.shard_key(number)
        size = self._commit.objects[key].size
        begin, everything = max(size - layout.index_bytes, 0), range(layout.chunks_per_shard)
        tail = self._read_range(number, everything, begin, size)
        if len(tail) != size - begin:
            raise corrupt_chunks(
                self._location, layout, number, everything, "a file that ends too early", f"{size} bytes"
            )
        return ShardIndex(self._location, layout, number, size, tail)

    def _fetch(self, request: _Request) -> None:
        """Fetch and place the pieces of one request; once more where a checksum does not hold: it was the network's."""
        try:
            self._fetch_once(request)
        except CorruptDataError:
            self._fetch_once(request)

    def _fetch_once(self, request: _Request) -> None:
        shard = request.shard
        chunks = [piece.chunk for piece in request.pieces]
        everything = range(min(chunks), max(chunks) + 1)
        answer = np.frombuffer(self._read_range(shard.number, everything, request.start, request.stop), np.uint8)
        if len(answer) != request.stop - request.start:
            allowed = f"{request.stop - request.start} bytes at {request.start}"
            raise shard.corrupt(everything, "a file that ends too early", allowed)
        for piece in request.pieces:
            begin = shard.offsets[piece.chunk] - request.start
            self._place(shard, piece, answer[begin : begin + shard.lengths[piece.chunk]])

    def _place(self, shard: ShardIndex, piece: _Piece, stored: Bytes) -> None:
        """Check one chunk and put its rows where they belong."""
        body, tail = stored[:-CRC_BYTES], stored[-CRC_BYTES:]
        shard.check(piece.chunk, crc32c(body), int.from_bytes(tail.tobytes(), "little"))
        size = self.layout.chunk_bytes
        whole = piece.target.nbytes == size
        if self.layout.compressed:
            body = shard.decompress(piece.chunk, body, piece.target if whole else np.empty(size, np.uint8))
        if not whole:
            self._hold(shard.number, piece.chunk, body)
            body = body[piece.skip : piece.skip + piece.target.nbytes]
        if body is not piece.target:
            piece.target[:] = body

    def _hold(self, number: int, chunk: int, body: Bytes) -> None:
        if not self._max_held:
            return
        copy = np.array(body)  # not a view: the answer holds other chunks too
        with self._lock:
            self._held[number, chunk] = copy
            while len(self._held) > self._max_held:
                self._held.popitem(last=False)

    def _from_held(self, number: int, piece: _Piece) -> bool:
        with self._lock:
            body = self._held.get((number, piece.chunk))
            if body is not None:
                self._held.move_to_end((number, piece.chunk))
        if body is None:
            return False
        piece.target[:] = body[piece.skip : piece.skip + piece.target.nbytes]
        return True

    def _read_range(self, number: int, chunks: range, start: int, stop: int) -> bytes:
        try:
            return self._location.read_range(self.layout.shard_key(number), start, stop)
        except FileNotFoundError as error:
            raise corrupt_chunks(self._location, self.layout, number, chunks, "no such file", "a shard file") from error
