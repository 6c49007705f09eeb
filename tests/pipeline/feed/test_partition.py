import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_rl.pipeline.feed.partition import (
    EpisodeTable,
    Transitions,
    check_split,
    select_top_episodes,
    shards_of,
    split,
)
from dask_rl.storage.errors import ConfigError


@st.composite
def tables(draw: st.DrawFn) -> EpisodeTable:
    episodes = draw(st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.booleans()), min_size=1, max_size=12))
    lengths, finals, ended = (np.array(column) for column in zip(*episodes, strict=True))
    ends = np.cumsum(lengths + 1)
    return EpisodeTable(ends - lengths - 1, ends, finals.astype(bool), ended.astype(bool))


def usable(table: EpisodeTable, needs_next: bool, selected: set[int]) -> list[int]:
    rows = []
    for index in sorted(selected):
        last = int(table.ends[index]) - 2
        for row in range(int(table.starts[index]), last + 1):
            unseen = row == last and not table.has_final_observation[index]
            if not (needs_next and unseen and not table.terminated[index]):
                rows.append(row)
    return rows


@given(tables(), st.booleans(), st.data())
def test_transitions_are_the_rows_that_may_be_used(table: EpisodeTable, needs_next: bool, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, len(table.ends) - 1), min_size=1))
    selected = np.array(sorted(chosen))
    transitions = Transitions.of(table, needs_next=needs_next, selected=selected)
    expected = usable(table, needs_next, chosen)
    assert transitions.num_positions == len(expected)
    assert transitions.rows(np.arange(len(expected))).tolist() == expected
    lasts = {int(table.ends[i]) - 2 for i in chosen if not table.has_final_observation[i]}
    assert transitions.invalid_next_rows.tolist() == sorted(lasts & set(expected))


@given(tables(), st.data())
def test_pieces_of_a_range_are_its_rows(table: EpisodeTable, data: st.DataObject) -> None:
    transitions = Transitions.of(table, needs_next=False)
    stop = data.draw(st.integers(1, transitions.num_positions))
    start = data.draw(st.integers(0, stop - 1))
    starts, stops = transitions.pieces(start, stop)
    rows = np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)])
    assert np.array_equal(rows, transitions.rows(np.arange(start, stop)))


@given(st.integers(0, 1000), st.integers(1, 40))
def test_split_covers_all_in_nearly_equal_parts(num_positions: int, num_parts: int) -> None:
    edges = split(num_positions, num_parts)
    sizes = np.diff(edges)
    assert (edges[0], edges[-1]) == (0, num_positions)
    assert sizes.max() - sizes.min() <= 1


@given(st.integers(1, 20), st.data())
def test_every_shard_has_one_owner(num_shards: int, data: st.DataObject) -> None:
    num_learners = data.draw(st.integers(1, num_shards))
    owned = [shard for learner in range(num_learners) for shard in shards_of(learner, num_learners, num_shards)]
    assert sorted(owned) == list(range(num_shards))


def test_top_episodes_prefer_the_earlier_of_equals() -> None:
    returns = np.array([1.0, 5.0, 3.0, 5.0, 3.0])
    assert select_top_episodes(returns, 0.6).tolist() == [1, 2, 3]
    assert select_top_episodes(returns, 0.01).tolist() == [1]
    assert select_top_episodes(np.arange(1000.0), 0.1).tolist() == list(range(900, 1000))
    with pytest.raises(ConfigError, match="top_fraction: got 0"):
        select_top_episodes(returns, 0)


@pytest.mark.parametrize(
    ("num_positions", "batch_size", "num_shards", "num_learners", "message"),
    [
        (100, 30, 8, 1, "batch_size: got 30; allowed: a multiple of num_shards=8; use 24 or 32"),
        (100, 5, 8, 1, "use 8"),
        (100, 4, 4, 5, "num_shards: got 4; allowed: at least the number of learners, 5"),
        (3, 8, 4, 1, "allowed: at most 3, so that no shard is empty"),
        (0, 8, 4, 1, "dataset: got no usable transition: .* an algorithm that needs no next observations"),
    ],
)
def test_a_split_that_does_not_work_out_says_what_would(
    num_positions: int, batch_size: int, num_shards: int, num_learners: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_split(num_positions, batch_size, num_shards, num_learners)
