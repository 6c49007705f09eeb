"""Block arithmetic: how many rows a shard, an inner chunk and a Dask block hold. Pure functions."""

from collections.abc import Iterable, Iterator

from .errors import ConfigError, explain
from .schema import ArraySpec

MAX_SHARD_BYTES = 128 << 20
MAX_SHARD_ROWS = 1 << 26
MAX_CHUNK_BYTES = 1 << 20
MAX_READ_BYTES = 1 << 30  # of a chunk, decoded: a small file must not make its reader reserve all memory
MIN_CHUNK_ROWS = 16  # a chunk of many frames compresses across frames
BLOCK_BYTES = 64 << 20


def choose_shard_rows(arrays: Iterable[ArraySpec], num_rows: int | None = None) -> int:
    """Return the rows of a shard, one power of two for all arrays.

    The largest array's shard holds at most 128 MiB raw; a short dataset gets no more rows than the next power of
    two, so that padding stays small.

    Args:
        arrays: all arrays on the time axis.
        num_rows: rows of the dataset; None while it is not known.
    """
    widest = max(max(spec.row_bytes for spec in arrays), 1)
    rows = _power_of_two_at_most(MAX_SHARD_BYTES // widest)
    return rows if num_rows is None else min(rows, next_power_of_two(num_rows))


def choose_chunk_rows(array: ArraySpec, shard_rows: int) -> int:
    """Return the rows of an inner chunk: a power of two that divides `shard_rows`, 0.5 to 1 MiB raw if it can be.

    Large rows (images) still come at least 16 to a chunk.
    """
    rows = _power_of_two_at_most(MAX_CHUNK_BYTES // max(array.row_bytes, 1))
    return min(max(rows, MIN_CHUNK_ROWS), shard_rows)


def choose_block_rows(row_bytes: int, shard_rows: int) -> int:
    """Return the rows of a Dask block: a power of two that divides `shard_rows`, at most about 64 MiB."""
    return min(_power_of_two_at_most(BLOCK_BYTES // max(row_bytes, 1)), shard_rows)


def block_ranges(num_rows: int, block_rows: int) -> Iterator[tuple[int, int]]:
    """Yield the row ranges [start, stop) of all blocks; the last may be short."""
    for start in range(0, num_rows, block_rows):
        yield start, min(start + block_rows, num_rows)


def check_block_rows(block_rows: int, shard_rows: int) -> int:
    """Return `block_rows` if its blocks do not straddle shards.

    Raises:
        ConfigError: it neither divides `shard_rows` nor is a multiple of it.
    """
    if block_rows < 1 or (shard_rows % block_rows and block_rows % shard_rows):
        raise ConfigError(
            explain(
                "block_rows",
                got=block_rows,
                allowed=f"a divisor or a multiple of shard_rows={shard_rows}",
                fix=f"use {min(next_power_of_two(max(block_rows, 1)), shard_rows)}",
            )
        )
    return block_rows


def check_shard_rows(shard_rows: int) -> int:
    """Return `shard_rows` if it is a power of two.

    Raises:
        ConfigError: it is not, or too large for memory.
    """
    if shard_rows < 1 or shard_rows & (shard_rows - 1):
        nearest = next_power_of_two(max(shard_rows, 1))
        raise ConfigError(explain("shard_rows", got=shard_rows, allowed="a power of two", fix=f"use {nearest}"))
    if shard_rows > MAX_SHARD_ROWS:
        allowed = f"at most {MAX_SHARD_ROWS}"
        raise ConfigError(
            explain("shard_rows", got=shard_rows, allowed=allowed, fix="leave it out, to be chosen by size")
        )
    return shard_rows


def next_power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number` ≥ 1."""
    return 1 << (number - 1).bit_length()


def _power_of_two_at_most(number: int) -> int:
    return 1 << (max(number, 1).bit_length() - 1)
