import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_rl.storage import ArraySpec, ConfigError
from dask_rl.storage.blocking import (
    MAX_SHARD_BYTES,
    block_ranges,
    check_block_rows,
    check_shard_rows,
    choose_block_rows,
    choose_chunk_rows,
    choose_shard_rows,
    next_power_of_two,
)

DTYPES = st.sampled_from(["bool", "uint8", "float32", "float64", "int64"])
SHAPES = st.lists(st.integers(1, 96), max_size=3).map(tuple)
SPECS = st.lists(st.builds(ArraySpec, st.just("x"), DTYPES.map(np.dtype), SHAPES), min_size=1, max_size=4)


@given(SPECS, st.none() | st.integers(1, 10**7))
def test_sizes_hold_the_promises(specs, num_rows):
    shard_rows = choose_shard_rows(specs, num_rows)
    widest = max(spec.row_bytes for spec in specs)
    assert shard_rows & (shard_rows - 1) == 0
    assert shard_rows * widest <= MAX_SHARD_BYTES
    if num_rows is None:
        assert 2 * shard_rows * widest > MAX_SHARD_BYTES
    else:
        assert shard_rows <= next_power_of_two(num_rows)
    for spec in specs:
        chunk_rows = choose_chunk_rows(spec, shard_rows)
        assert shard_rows % chunk_rows == 0
        assert chunk_rows * spec.row_bytes <= 1 << 20 or chunk_rows <= 16
        assert chunk_rows == shard_rows or chunk_rows >= 16
        assert chunk_rows == shard_rows or chunk_rows * spec.row_bytes > 1 << 19
        assert shard_rows % choose_block_rows(spec.row_bytes, shard_rows) == 0


@given(st.integers(1, 1000), st.integers(1, 300))
def test_blocks_cover_every_row_once(num_rows, block_rows):
    ranges = list(block_ranges(num_rows, block_rows))
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(num_rows))
    assert max(stop - start for start, stop in ranges) <= block_rows


def test_wrong_sizes_name_a_right_one():
    with pytest.raises(ConfigError, match="shard_rows: got 100; allowed: a power of two; use 128"):
        check_shard_rows(100)
    with pytest.raises(ConfigError, match="shard_rows: got 4611686018427387904; allowed: at most 67108864"):
        check_shard_rows(1 << 62)
    with pytest.raises(ConfigError, match="block_rows: got 48; allowed: a divisor or a multiple of shard_rows=64"):
        check_block_rows(48, 64)
    assert check_block_rows(128, 64) == 128
