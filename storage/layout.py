"""How one array lies in its shard files: the part of Zarr v3 that this package reads and writes by itself."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from awscrt import checksums

CRC_BYTES = 4
ABSENT = 2**64 - 1  # offset and length of an inner chunk that is not stored


@dataclass(frozen=True)
class ArrayLayout:
    """A sharded array with inner chunks [bytes(little), (zstd), crc32c] and its index [bytes, crc32c] at the end.

    Shards and chunks split the row axis only.
    """

    key: str
    """Where the array lies in the group, such as `data/observations`."""
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    num_rows: int
    shard_rows: int
    chunk_rows: int
    compressed: bool
    """Whether the inner chunks are compressed with zstd."""
    first_row: int = 0
    """The dataset's number of its first row: not 0 in segments that were appended."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, uncompressed."""
        return self.dtype.itemsize * math.prod(self.row_shape)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one inner chunk, uncompressed, without its checksum."""
        return self.chunk_rows * self.row_bytes

    @property
    def chunks_per_shard(self) -> int:
        """Inner chunks that a full shard holds."""
        return self.shard_rows // self.chunk_rows

    @property
    def num_shards(self) -> int:
        """Shard files of the array."""
        return -(-self.num_rows // self.shard_rows)

    @property
    def index_bytes(self) -> int:
        """Bytes of the index at the end of a shard file."""
        return 16 * self.chunks_per_shard + CRC_BYTES

    def shard_key(self, shard: int) -> str:
        """Where shard number `shard` lies in the group."""
        return f"{self.key}/c/{shard}" + "/0" * len(self.row_shape)

    def chunks_in_shard(self, shard: int) -> int:
        """Inner chunks of this shard that hold at least one row."""
        rows = min(self.num_rows - shard * self.shard_rows, self.shard_rows)
        return -(-rows // self.chunk_rows)


def parse_layout(key: str, metadata: Mapping[str, Any]) -> ArrayLayout | None:
    """Return the layout of an array from its `zarr.json`; None if the direct reader does not know such arrays."""
    try:
        sharding = metadata["codecs"][0]["configuration"]
        shape, shard = metadata["shape"], metadata["chunk_grid"]["configuration"]["chunk_shape"]
        chunk = sharding["chunk_shape"]
        names = [codec["name"] for codec in sharding["codecs"]]
        known = (
            metadata["node_type"] == "array"
            and [codec["name"] for codec in metadata["codecs"]] == ["sharding_indexed"]
            and metadata["chunk_grid"]["name"] == "regular"
            and metadata["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "/"}}
            and not metadata.get("storage_transformers")
            and names in (["bytes", "crc32c"], ["bytes", "zstd", "crc32c"])
            and all(_is_little_endian(codecs) for codecs in (sharding["codecs"], sharding["index_codecs"]))
            and [codec["name"] for codec in sharding["index_codecs"]] == ["bytes", "crc32c"]
            and sharding.get("index_location", "end") == "end"
            and all(type(length) is int for length in (*shape, *shard, *chunk))
            and shape[1:] == shard[1:] == chunk[1:]
            and 0 < chunk[0] <= shard[0]
            and shard[0] % chunk[0] == 0
        )
        dtype = np.dtype(metadata["data_type"]).newbyteorder("<")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    if not known or dtype.kind not in "biuf":
        return None
    return ArrayLayout(
        key=key,
        dtype=dtype,
        row_shape=tuple(shape[1:]),
        num_rows=shape[0],
        shard_rows=shard[0],
        chunk_rows=chunk[0],
        compressed="zstd" in names,
    )


def _is_little_endian(codecs: list[dict[str, Any]]) -> bool:
    # One-byte types carry no byte order.
    return bool(codecs[0].get("configuration", {}).get("endian", "little") == "little")


def crc32c(data: bytes | npt.NDArray[Any], start: int = 0) -> int:
    """Return the CRC-32C of contiguous bytes or of a contiguous array, continued from `start`."""
    return int(checksums.crc32c(data, start))  # seven times as fast as google-crc32c, which zarr-python brings along


def encode_index(offsets_and_lengths: npt.NDArray[np.uint64]) -> bytes:
    """Return the bytes of a shard index, (chunks_per_shard, 2), with its checksum."""
    raw = offsets_and_lengths.astype("<u8").tobytes()
    return raw + crc32c(raw).to_bytes(CRC_BYTES, "little")


def decode_index(raw: bytes) -> npt.NDArray[np.uint64] | None:
    """Return the shard index, (chunks_per_shard, 2); None if its checksum does not hold."""
    body, stored = raw[:-CRC_BYTES], int.from_bytes(raw[-CRC_BYTES:], "little")
    return np.frombuffer(body, "<u8").reshape(-1, 2) if crc32c(body) == stored else None
