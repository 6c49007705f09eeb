import collections

import pytest
import torch
from episode_cases import episode_lists, multi_agent_episode_lists, tagged_episode
from hypothesis import given
from hypothesis import strategies as st

from dask_rl.learners.batch import DEFAULT_MODULE_ID
from dask_rl.learners.episodes import multi_batch_from_episodes
from dask_rl.learners.minibatch import count_minibatches, cyclic_minibatches
from dask_rl.learners.splitting import plan_batch_update, plan_episode_update, split_contiguous
from dask_rl.storage.errors import ConfigError


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
    with pytest.raises(ConfigError, match="batch: got no rows"):
        plan_batch_update({}, 2, 1, None)


@pytest.mark.parametrize("num_learners", [1, 2])
@pytest.mark.parametrize("empty", [{}, {"x": torch.zeros(0)}])
def test_a_module_without_rows_is_an_error_before_any_learner_starts(num_learners, empty):
    with pytest.raises(ConfigError, match="batch of module 'b': got no rows; allowed: at least one"):
        plan_batch_update({"a": {"x": torch.zeros(4)}, "b": empty}, num_learners, 1, None)


def test_no_row_of_a_tail_is_dropped_and_every_minibatch_is_full():
    plan = plan_batch_update({"m": {"x": torch.arange(103)}}, 4, 1, 8)
    seen = set()
    for batch in plan.batches:
        minibatches = list(cyclic_minibatches(batch, plan.num_minibatches, 8, shuffle_seed=3))
        assert [len(minibatch["m"]["x"]) for minibatch in minibatches] == [8] * 4
        seen.update(torch.cat([minibatch["m"]["x"] for minibatch in minibatches]).tolist())
    assert seen == set(range(103))


def test_learners_with_fewer_rows_take_as_many_steps():
    rows = {"many": 256, "few": 64}
    count = count_minibatches(list(rows.values()), 1, 32)
    assert count == 8
    for name, number in rows.items():
        minibatches = list(cyclic_minibatches({name: {"x": torch.arange(number)}}, count, 32))
        assert [len(minibatch[name]["x"]) for minibatch in minibatches] == [32] * 8
        seen = torch.cat([minibatch[name]["x"] for minibatch in minibatches]).tolist()
        assert collections.Counter(seen) == dict.fromkeys(range(number), 256 // number)


def plan_episodes(episodes, num_learners, num_epochs=1, minibatch_size=None, lookback=0):
    return plan_episode_update(
        episodes, num_learners, num_epochs, minibatch_size, lookback=lookback, discount_of=lambda _: 0.9
    )


def totals(plan):
    return [sum(map(len, part)) for part in plan.shares]


def test_episodes_are_shared_to_within_one_episode():
    lengths = [10, 21, 3, 4, 35, 41, 5, 15, 44]
    plan = plan_episodes([tagged_episode(n, tag) for tag, n in enumerate(lengths)], 3, 1, 16)
    assert sum(totals(plan)) == sum(lengths)
    assert max(totals(plan)) - min(totals(plan)) <= 1
    assert {share.episode.id for part in plan.shares for share in part} == set(range(9))
    assert plan.num_minibatches == 4  # 60 rows over 16
    assert plan.modules_to_skip == frozenset()


@pytest.mark.parametrize(
    ("length", "epochs", "size", "count"), [(512, 1, 128, 4), (96, 2, 16, 12), (100, 3, 32, 10), (32, 1, 128, 1)]
)
def test_minibatches_of_episodes_on_one_learner(length, epochs, size, count):
    assert plan_episodes([tagged_episode(length)], 1, epochs, size).num_minibatches == count


@given(episodes=episode_lists(), learners=st.integers(1, 6), epochs=st.integers(1, 3), size=st.integers(1, 20))
def test_plan_and_rows_agree(episodes, learners, epochs, size):
    plan = plan_episodes(episodes, learners, epochs, size)
    rows = sum(map(len, episodes))
    assert len(plan.shares) == learners
    if rows < learners:
        assert plan.modules_to_skip == {DEFAULT_MODULE_ID}
    else:
        assert plan.modules_to_skip == frozenset()
        assert min(totals(plan)) >= 1
        assert plan.num_minibatches == -(-epochs * -(-rows // learners) // size)


@given(episodes=multi_agent_episode_lists(), learners=st.integers(1, 6), size=st.integers(1, 20))
def test_modules_are_left_out_only_where_they_have_fewer_steps_than_there_are_learners(episodes, learners, size):
    plan = plan_episodes(episodes, learners, 1, size)
    rows = {}
    for rank, part in enumerate(plan.shares):
        for share in part:
            rows.setdefault(share.module_id, [0] * learners)[rank] += len(share)
    assert plan.modules_to_skip == {module_id for module_id, counts in rows.items() if sum(counts) < learners}
    most = [max(counts) for module_id, counts in rows.items() if module_id not in plan.modules_to_skip]
    assert plan.num_minibatches == -(-max(most, default=1) // size)


def test_fewer_steps_than_learners_are_no_error_but_none_are():
    plan = plan_episodes([tagged_episode(1), tagged_episode(1, 1)], 3, 2)
    assert (plan.modules_to_skip, plan.num_minibatches) == ({DEFAULT_MODULE_ID}, 2)
    with pytest.raises(ConfigError, match="episodes: got none; allowed: at least one"):
        plan_episodes([], 1)


def test_rows_of_an_episode_stay_an_episode():
    episodes = [tagged_episode(100), tagged_episode(50, 1)]
    plan = plan_episodes(episodes, 3, lookback=2)
    assert sum(map(len, plan.shares)) == 3  # one cut, not a share a row
    batches = [multi_batch_from_episodes(part, torch.float64, lambda _: 0.9)[DEFAULT_MODULE_ID] for part in plan.shares]
    assert sum(int(batch["terminations"].sum()) for batch in batches) == 2
    one_step = sum(int((batch["returns_to_go"] == batch["rewards"]).sum()) for batch in batches)
    assert one_step == 2  # the last steps only


@given(st.integers(0, 30), st.integers(1, 8))
def test_lists_are_split_contiguously_with_the_remainder_first(number, parts):
    split = split_contiguous(range(number), parts)
    assert [item for part in split for item in part] == list(range(number))
    sizes = [len(part) for part in split]
    assert len(sizes) == parts
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_seven_futures_over_three_learners():
    assert split_contiguous("abcdefg", 3) == [["a", "b", "c"], ["d", "e"], ["f", "g"]]
