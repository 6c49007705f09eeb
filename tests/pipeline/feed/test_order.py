import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dask_rl.pipeline.feed.order import ShardOrder, shard_order


@st.composite
def orders(draw: st.DrawFn) -> ShardOrder:
    num_shards = draw(st.integers(1, 6))
    return ShardOrder(
        seed=draw(st.integers(0, 2**40)),
        shard=draw(st.integers(0, num_shards - 1)),
        num_shards=num_shards,
        num_positions=draw(st.integers(1, 200)),
        block_rows=draw(st.integers(1, 40)),
        window_rows=draw(st.integers(1, 90)),
    )


@given(orders(), st.integers(0, 3))
def test_an_epoch_visits_every_position_once(order: ShardOrder, epoch: int) -> None:
    assert np.array_equal(np.sort(shard_order(order, epoch)), np.arange(order.num_positions))


@given(orders(), st.integers(0, 500))
def test_windows_from_a_row_are_those_of_the_whole_stream(order: ShardOrder, row: int) -> None:
    whole, late = order.windows_from(0), order.windows_from(row)
    window = next(late)
    assert window.start <= row < window.start + window.num_rows
    end = 0
    for expected in whole:
        assert expected.start == end  # no gap, no overlap
        end += expected.num_rows
        if expected.start == window.start:
            assert expected == window
            break
    assert next(whole) == next(late)


@given(orders())
def test_windows_hold_at_most_their_rows(order: ShardOrder) -> None:
    limit = max(order.window_rows, order.block_rows)
    for window in order.epoch_windows(0):
        assert 0 < window.num_rows <= limit
        assert 0 < len(window.parts) <= order.blocks_per_window


def test_the_order_depends_on_seed_shard_and_epoch_alone() -> None:
    order = ShardOrder(seed=1, shard=0, num_shards=2, num_positions=500, block_rows=50, window_rows=200)
    first = shard_order(order, 0)
    assert np.array_equal(first, shard_order(dataclasses.replace(order), 0))
    for other in (
        shard_order(order, 1),
        shard_order(dataclasses.replace(order, seed=2), 0),
        shard_order(dataclasses.replace(order, shard=1), 0),
    ):
        assert not np.array_equal(first, other)


def test_the_order_is_pinned() -> None:
    # A change here changes every run that is resumed: it needs a new version of the recorded parameters.
    order = ShardOrder(seed=3, shard=1, num_shards=2, num_positions=12, block_rows=2, window_rows=4)
    assert shard_order(order, 0).tolist() == [8, 9, 6, 0, 1, 7, 11, 10, 4, 5, 3, 2]


def test_shards_change_windows_at_different_rows() -> None:
    orders = [ShardOrder(0, shard, 8, 1600, 100, 400) for shard in range(8)]
    changes = sorted(window.start for order in orders for window in order.epoch_windows(0)[1:])
    inside = [row for row in changes if row < 1600 - 100]  # the last window holds what is left
    assert inside == list(range(50, 1500, 50))  # evenly spread, one at a time
