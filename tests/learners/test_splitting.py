import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dask_rl.learners.splitting import plan_batch_update, plan_episode_update
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError


def episode(length, tag=0):
    flags = np.zeros(length, bool)
    return Episode(np.full((length + 1, 1), tag), np.zeros((length, 1)), np.zeros(length), flags, flags, id=tag)


@given(rows=st.integers(1, 60), learners=st.integers(1, 8), size=st.none() | st.integers(1, 9))
def test_batches_are_balanced_and_whole(rows, learners, size):
    plan = plan_batch_update({"m": {"x": torch.arange(rows)}}, learners, 2, size)
    parts = [batch["m"]["x"] for batch in plan.batches]
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert torch.cat(parts).tolist() == list(range(rows))
    assert plan.modules_to_skip == (frozenset({"m"}) if rows < learners else frozenset())
    if size is not None and rows >= learners:
        assert plan.num_minibatches == -(-2 * max(sizes) // size)


def test_five_rows_over_four_learners_leave_none_without():
    plan = plan_batch_update({"m": {"x": torch.arange(5)}}, 4, 1, None)
    assert sorted(len(batch["m"]["x"]) for batch in plan.batches) == [1, 1, 1, 2]


def test_a_module_with_too_few_rows_is_left_out_by_all():
    batch = {"small": {"x": torch.arange(1)}, "large": {"x": torch.arange(64)}}
    plan = plan_batch_update(batch, 2, 1, 8)
    assert plan.modules_to_skip == {"small"}
    assert plan.num_minibatches == 4


def test_no_rows_at_all_is_an_error():
    for batch in ({}, {"m": {"x": torch.zeros(0)}}):
        with pytest.raises(ConfigError, match="batch: got no rows"):
            plan_batch_update(batch, 2, 1, None)


def test_episodes_are_shared_to_within_one_episode():
    lengths = [10, 21, 3, 4, 35, 41, 5, 15, 44]
    plan = plan_episode_update([episode(n, tag) for tag, n in enumerate(lengths)], 3, 1, 16)
    totals = [sum(map(len, part)) for part in plan.episodes]
    assert sum(totals) == sum(lengths)
    assert max(totals) - min(totals) <= max(lengths)
    assert sorted(e.id for part in plan.episodes for e in part) == list(range(9))
    assert plan.num_minibatches == -(-max(totals) // 16)
    # better than any order of arrival: the longest go first
    assert max(totals) - min(totals) <= 5


def test_too_few_episodes_are_refused():
    with pytest.raises(ConfigError, match=r"episodes: got 2; allowed: at least 3"):
        plan_episode_update([episode(4), episode(4)], 3, 1, None)
