"""Rows to the bytes of one shard file. Pure, and the same bytes for the same rows."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs import zstd

from .layout import ABSENT, CRC_BYTES, ArrayLayout, crc32c, encode_index
from .schema import fill_value

ZSTD_LEVEL = 1
MIN_COMPRESSION_RATIO = 1.3  # below it zstd costs more reading time than it saves

Bytes = bytes | memoryview


@dataclass(frozen=True)
class EncodedShard:
    """The content of one shard file, as buffers to be written one after another."""

    buffers: Sequence[Bytes]
    size: int
    sha256: str
    """Of the whole file."""


@dataclass(frozen=True)
class RawShard:
    """The rows of one array in one shard, cut into inner chunks."""

    chunks: Sequence[npt.NDArray[np.uint8]]
    """Flat bytes of each inner chunk, the last one padded with the fill value."""
    crcs: Sequence[int]
    """CRC-32C of each, uncompressed."""
    padding_bytes: int
    """At the end of the last chunk."""

    @property
    def digest(self) -> int:
        """CRC-32C over the chunks' checksums: tells whether a finished shard holds these rows."""
        return digest_of(self.crcs)


def digest_of(crcs: Sequence[int]) -> int:
    """Return a CRC-32C over the checksums of a shard's chunks."""
    return crc32c(np.array(crcs, "<u4"))


def cut_shard(layout: ArrayLayout, buffer: npt.NDArray[Any], num_rows: int) -> RawShard:
    """Cut the first `num_rows` rows of a shard buffer into inner chunks.

    Args:
        layout: the array's layout.
        buffer: (shard_rows, *row_shape), little-endian; rows that pad the last chunk are set to the fill value.
        num_rows: rows that hold data.
    """
    num_chunks = -(-num_rows // layout.chunk_rows)
    buffer[num_rows : num_chunks * layout.chunk_rows] = fill_value(layout.dtype)
    flat = buffer.reshape(-1).view(np.uint8)
    size = layout.chunk_bytes
    chunks = [flat[i * size : (i + 1) * size] for i in range(num_chunks)]
    padding = num_chunks * size - num_rows * layout.row_bytes
    return RawShard(chunks, [crc32c(chunk) for chunk in chunks], padding)


def compresses(raw: RawShard) -> bool:
    """Whether zstd is worth it: the first, the middle and the last chunk reach 1.3× together, padding left out."""
    last = len(raw.chunks) - 1
    chunks = [*raw.chunks[:last], raw.chunks[last][: raw.chunks[last].nbytes - raw.padding_bytes]]
    sample = [chunks[i] for i in sorted({0, last // 2, last})]
    stored = sum(len(zstd.compress(chunk, ZSTD_LEVEL)) for chunk in sample)
    return sum(chunk.nbytes for chunk in sample) >= MIN_COMPRESSION_RATIO * stored


def encode_shard(layout: ArrayLayout, raw: RawShard) -> EncodedShard:
    """Encode the chunks of one shard; chunks wholly beyond the last row stay absent in the index."""
    index = np.full((layout.chunks_per_shard, 2), ABSENT, "<u8")
    buffers: list[Bytes] = []
    size, digest = 0, hashlib.sha256()
    for i, chunk in enumerate(raw.chunks):
        body = np.frombuffer(zstd.compress(chunk, ZSTD_LEVEL), np.uint8) if layout.compressed else chunk
        checksum = crc32c(body) if layout.compressed else raw.crcs[i]
        tail = checksum.to_bytes(CRC_BYTES, "little")
        buffers += [body.data, tail]
        index[i] = size, len(body) + CRC_BYTES
        size += len(body) + CRC_BYTES
        digest.update(body.data)
        digest.update(tail)
    index_bytes = encode_index(index)
    digest.update(index_bytes)
    return EncodedShard([*buffers, index_bytes], size + len(index_bytes), digest.hexdigest())
