"""What an update may be given, in process and on two learner processes."""

import warnings

import numpy as np
import pytest
import torch
from group_cases import (
    TWO_MODULES,
    Sharded,
    SumLearner,
    TellingLearner,
    ask,
    assert_learners_agree,
    flat,
    make_episode,
    make_multi_agent_episode,
    rows_of,
)

from dask_rl.learners.batch import split_batch
from dask_rl.learners.metrics import STATE_KEY
from dask_rl.storage.errors import ConfigError

EPISODES = [make_episode(length, length) for length in (9, 4, 6)]
AGENTS = [make_multi_agent_episode((6, 5), 1), make_multi_agent_episode((4, 7), 5)]

# name: (the update method's end, a function of (client, learners) that makes its input, options, module ids)
INPUTS = {
    "a batch": ("batch", lambda client, size: rows_of(12), {}, "d"),
    "a multi-batch": ("batch", lambda client, size: {"a": rows_of(8), "b": rows_of(6)}, {}, "ab"),
    "futures of batches": ("batch", lambda client, size: client.scatter([rows_of(5, k) for k in range(size)]), {}, "d"),
    "futures of multi-batches": (
        "batch",
        lambda client, size: client.scatter([{"a": rows_of(5, k), "b": rows_of(3, k)} for k in range(size)]),
        {},
        "ab",
    ),
    "iterators as a batch": (
        "batch",
        lambda client, size: [[rows_of(4, k)] for k in range(size)],
        {"num_iters": 2},
        "d",
    ),
    "iterators": ("iterators", lambda client, size: [[{"a": rows_of(4)}] for _ in range(size)], {"num_iters": 2}, "a"),
    "sources": ("iterators", lambda client, size: Sharded().shares(size), {"num_iters": 2}, "d"),
    "shared data": ("iterators", lambda client, size: Sharded(), {"num_iters": 2}, "d"),
    "episodes": ("episodes", lambda client, size: EPISODES, {"minibatch_size": 3}, "d"),
    "multi-agent episodes": ("episodes", lambda client, size: AGENTS, {}, "ab"),
    "futures of episodes": ("episodes", lambda client, size: client.scatter([EPISODES[:2], EPISODES[2:]]), {}, "d"),
    "futures of multi-agent episodes": (
        "episodes",
        lambda client, size: client.scatter([AGENTS[:1], AGENTS[1:]]),
        {},
        "ab",
    ),
    "iterators of episodes": ("episodes", lambda client, size: [EPISODES] * size, {"num_iters": 2}, "d"),
    "iterators of lists of episodes": ("episodes", lambda client, size: [[AGENTS]] * size, {"num_iters": 2}, "ab"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_every_kind_of_input_trains_and_passes_on_all_that_was_asked_for(
    open_group, num_learners, cluster_client, name
):
    """Also by way of episodes and futures: return_state, timesteps, further arguments."""
    kind, make, options, module_ids = INPUTS[name]
    modules = {"d": {"default_module"}}.get(module_ids, set(module_ids))
    spec = {} if module_ids == "d" else {"module_spec": TWO_MODULES}
    group = open_group(num_learners, learner_class=TellingLearner, **spec)
    before = group.get_weights()
    asked = {"return_state": True, "timesteps": {"total": 7}, "colour": "red", **options}
    results = getattr(group, f"update_from_{kind}")(make(cluster_client, len(group)), **asked)
    assert len(results) == len(group)
    for result in results:
        assert set(result) - {STATE_KEY} == modules | {"all_modules"}
        assert result["all_modules"]["timesteps"] == {"total": 7}
    assert [STATE_KEY in result for result in results] == [True] + [False] * (len(group) - 1)
    state, after = results[0][STATE_KEY]["rl_module"], group.get_weights(modules, inference_only=True)
    assert set(state) == modules, "only those that were updated"
    np.testing.assert_array_equal(flat(state), flat(after))
    assert not np.array_equal(flat(group.get_weights(modules)), flat({id_: before[id_] for id_ in modules}))
    for heard in ask(group, lambda learner: [learner.before, learner.after]):
        assert heard == [[({"total": 7}, {"colour": "red"})]] * 2
    assert_learners_agree(group)


def test_what_an_input_cannot_use_is_refused(open_group, num_learners, cluster_client):
    group = open_group(num_learners)
    size = len(group)
    lists, episodes = [[rows_of(4)]] * size, [[make_episode(4, 1)]] * size
    for option in ({"num_epochs": 2}, {"minibatch_size": 2}, {"shuffle_batch_per_epoch": True}):
        for update, given in (
            (group.update_from_batch, lists),
            (group.update_from_episodes, episodes),
            (group.update_from_iterators, lists),
            (group.update_from_iterators, Sharded()),
        ):
            with pytest.raises(ConfigError, match=r"iterators: got .*num_iters"):
                update(given, num_iters=1, **option)
    for update, given in (
        (group.update_from_batch, rows_of(4)),
        (group.update_from_batch, cluster_client.scatter([rows_of(4, k) for k in range(size)])),
        (group.update_from_episodes, EPISODES),
        (group.update_from_episodes, cluster_client.scatter([EPISODES] * size)),
    ):
        with pytest.raises(ConfigError, match="num_iters: got 3 without iterators; allowed: none"):
            update(given, num_iters=3)
    assert group.get_stats()["num_update_calls"] == 0


def test_one_module_as_a_batch_or_by_its_id(open_group, num_learners):
    weights = []
    for batch in (rows_of(9), {"default_module": rows_of(9)}):
        group = open_group(num_learners)
        group.update_from_batch(batch)
        weights.append(flat(group.get_weights()))
    np.testing.assert_array_equal(*weights)


def test_futures_are_one_a_learner_and_equal_to_their_values(open_group, num_learners, cluster_client):
    batch, size = rows_of(10), max(1, num_learners)
    given, split = open_group(num_learners), open_group(num_learners)
    passes = {"num_epochs": 2, "minibatch_size": 3, "shuffle_batch_per_epoch": True}
    given.update_from_batch(cluster_client.scatter(split_batch(batch, size)), **passes)
    split.update_from_batch(batch, **passes)
    np.testing.assert_array_equal(flat(given.get_weights()), flat(split.get_weights()))
    with pytest.raises(ConfigError, match=f"futures of batches: got 3; allowed: {size}, one per learner"):
        given.update_from_batch(cluster_client.scatter([rows_of(2, k) for k in range(3)]))


def test_results_of_tasks_need_not_be_there_yet_and_their_errors_are_told(open_group, num_learners, cluster_client):
    group = open_group(num_learners)
    size = len(group)
    rows = [
        cluster_client.submit(lambda rows: {"default_module": rows}, rows_of(4, k), pure=False) for k in range(size)
    ]
    assert group.update_from_batch(rows)[0]["default_module"]["num_rows"] == 4
    broken = [cluster_client.submit(lambda k: 1 // 0, k, pure=False) for k in range(size)]
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        group.update_from_batch(broken)
    with pytest.raises(ValueError, match="unknown modules"):
        group.update_from_batch(cluster_client.scatter([{"x": rows_of(2)} for _ in range(size)]))
    assert group.update_from_batch(rows)[0]["all_modules"]["step"] == 2


def test_futures_of_episodes_are_shared_out_contiguously(open_group, cluster_client):
    group = open_group(2)
    lists = [[make_episode(n, n)] for n in (2, 3, 4, 5, 6)]
    results = group.update_from_episodes(cluster_client.scatter(lists))
    assert [result["default_module"]["num_rows"] for result in results] == [2 + 3 + 4, 5 + 6]


def test_fewer_futures_than_learners_leave_the_step_out_on_all(open_group, cluster_client):
    group = open_group(2)
    before = flat(group.get_weights())
    results = group.update_from_episodes(cluster_client.scatter([EPISODES]))
    assert [result["all_modules"]["num_skipped_module_steps"] for result in results] == [1, 1]
    assert [result["all_modules"]["num_skipped_steps"] for result in results] == [1, 1]
    np.testing.assert_array_equal(flat(group.get_weights()), before)
    group.update_from_episodes(EPISODES)
    assert_learners_agree(group)


def test_256_rows_on_one_learner_and_64_on_the_other_at_minibatch_32_are_8_steps_each(open_group, cluster_client):
    group = open_group(2)
    results = group.update_from_batch(cluster_client.scatter([rows_of(256), rows_of(64)]), minibatch_size=32)
    assert [result["all_modules"]["num_steps"] for result in results] == [8, 8]
    assert [result["default_module"]["num_rows"] for result in results] == [256, 256]
    assert_learners_agree(group)


def test_modules_in_another_order_or_only_on_one_learner_do_not_deadlock(open_group, cluster_client):
    group = open_group(2, module_spec=TWO_MODULES)
    orders = [{"a": rows_of(4), "b": rows_of(4)}, {"b": rows_of(4, 1), "a": rows_of(4, 1)}]
    assert group.update_from_batch(cluster_client.scatter(orders))[0]["all_modules"]["num_skipped_module_steps"] == 0
    before = group.get_weights(["b"])
    uneven = [{"a": rows_of(4), "b": rows_of(4)}, {"a": rows_of(5), "b": {k: v[:0] for k, v in rows_of(1).items()}}]
    results = group.update_from_batch(cluster_client.scatter(uneven))
    assert [set(result) for result in results] == [{"a", "all_modules"}] * 2
    assert [result["all_modules"]["num_skipped_module_steps"] for result in results] == [1, 1]
    np.testing.assert_array_equal(flat(group.get_weights(["b"])), flat(before))
    iterators = [[{"a": rows_of(3), "b": rows_of(2)}], [{"a": rows_of(3)}]]
    results = group.update_from_iterators(iterators, num_iters=2)
    assert [set(result) for result in results] == [{"a", "all_modules"}] * 2
    assert_learners_agree(group)


def test_iterators_need_the_number_of_steps_and_one_for_each_learner(open_group, num_learners):
    group = open_group(num_learners)
    for update, given in ((group.update_from_batch, [rows_of(2)]), (group.update_from_episodes, EPISODES)):
        iterators = [given] * len(group)
        with pytest.raises(ValueError, match="num_iters: got nothing"):
            update(iterators)
        with pytest.raises(
            ValueError, match=f"iterators: got {len(group) + 1}; allowed: {len(group)}, one per learner"
        ):
            update([*iterators, given], num_iters=1)
        with pytest.raises(ValueError, match="num_iters: got 0"):
            update(iterators, num_iters=0)
    assert group.get_stats()["num_update_calls"] == 0


def test_unknown_modules_are_refused_in_every_input(open_group, num_learners):
    group = open_group(num_learners)
    strange = {"stranger": rows_of(4)}
    for update, given in (
        (group.update_from_batch, strange),
        (group.update_from_episodes, AGENTS),
        (lambda given: group.update_from_iterators([given] * len(group), num_iters=1), [strange]),
    ):
        with pytest.raises(ValueError, match=r"unknown modules \['"):
            update(given)
    assert group.update_from_batch(rows_of(4))[0]["all_modules"]["step"] == 1


def test_deprecated_aliases_do_the_same_and_say_what_to_use(open_group, num_learners):
    plain, alias = open_group(num_learners), open_group(num_learners)
    iterators = [[rows_of(3, 5)] for _ in range(len(plain))]
    plain.update_from_batch(rows_of(6), num_epochs=2)
    plain.update_from_episodes(EPISODES)
    plain.update_from_iterators(iterators, num_iters=2)
    for given in (
        {"batch": rows_of(6), "num_epochs": 2},
        {"episodes": EPISODES},
        {"iterators": iterators, "num_iters": 2},
    ):
        with pytest.warns(DeprecationWarning, match="update_from_"):
            results = alias.update(**given)
        assert len(results) == len(alias)
    np.testing.assert_array_equal(flat(plain.get_weights()), flat(alias.get_weights()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for given in ({}, {"batch": rows_of(2), "episodes": EPISODES}):
            with pytest.raises(ValueError, match="exactly one of batch, episodes, iterators"):
                alias.update(**given)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if alias.is_local:
            with pytest.raises(ValueError, match="local learner"):
                alias.async_update(batch=rows_of(6))
        else:
            assert isinstance(alias.async_update(batch=rows_of(6)), list)
            assert len(alias.collect_async_results(60)) == 1
    assert ["async_update=True" in str(warning.message) for warning in told] == [True]


def test_100_adam_steps_on_a_sum_of_parameters_move_each_by_100_rates(open_group, num_learners):
    group = open_group(num_learners, {"name": "bc", "learning_rate": 0.01}, learner_class=SumLearner)
    before = flat(group.get_weights())
    group.update_from_iterators([[rows_of(4, k)] for k in range(len(group))], num_iters=100)
    np.testing.assert_allclose(flat(group.get_weights()), before - 1.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("by", "limit"), [("value", 1e-3), ("norm", 1e-3), ("global_norm", 1e-2)])
def test_clipping_is_of_the_gradient_of_all_learners_together(open_group, num_learners, by, limit):
    group = open_group(num_learners, {"name": "iql", "grad_clip": limit, "grad_clip_by": by})
    group.update_from_iterators(Sharded(), num_iters=1)
    tensors = ask(
        group, lambda learner: [t.clone() for key in learner.optimizers for t in [learner.flat.segment_grad(key)]]
    )
    for mine in tensors:
        largest = max(float(t.abs().max() if by == "value" else t.norm()) for t in mine)
        assert largest <= limit * (1 + 1e-9) or by == "norm"
    whole = open_group(0, {"name": "iql", "grad_clip": limit, "grad_clip_by": by})
    whole.update_from_iterators(Sharded(), num_iters=1)
    [alone] = ask(whole, lambda learner: [learner.flat.segment_grad(key).clone() for key in learner.optimizers])
    for mine, other in zip(tensors[-1], alone, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)
