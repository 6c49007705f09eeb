"""State of a group by component: got, set, saved and restored, and what a learner would lose without it."""

import itertools

import numpy as np
import pytest
import torch
from group_cases import (
    SPEC,
    TWO_MODULES,
    BufferedLearner,
    BufferedModule,
    Sharded,
    ask,
    assert_learners_agree,
    everything,
    flat,
    rows_of,
)

from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.module import RLModuleSpec
from dask_rl.storage.errors import CheckpointError, ConfigError, LearnerError

IQL = {"name": "iql", "dropout": 0.3, "update_order": "sequential"}


def train(group, first, count):
    for seed in range(first, first + count):
        group.update_from_batch(
            {"a": rows_of(6, seed), "b": rows_of(8, seed)}, minibatch_size=3, shuffle_batch_per_epoch=True, num_epochs=2
        )


def leaves(tree, path=()):
    if not isinstance(tree, dict):
        return {"/".join(path): np.asarray(tree)}
    return {name: leaf for key, value in tree.items() for name, leaf in leaves(value, (*path, key)).items()}


def assert_same(mine, other):
    mine, other = leaves(mine), leaves(other)
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.fixture
def group(open_group, num_learners):
    return open_group(num_learners, IQL, module_spec=TWO_MODULES)


COMPONENTS = [f"learner/{name}" for name in ("rl_module/a", "rl_module", "optimizers/b", "counters", "lifetime")]


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_is_restored_alone_and_both_ways_of_choosing_agree(group, tmp_path, component):
    train(group, 0, 2)
    path = group.save_to_path(tmp_path / "checkpoint")
    saved = group.get_state()
    train(group, 2, 2)
    later = group.get_state()
    group.restore_from_path(path, component=component)
    now = group.get_state()
    assert_same(select(now, component, True), select(saved, component, True))
    assert_same(select(now, component, False), select(later, component, False))
    assert_same(group.get_state(component), select(now, component, True))
    assert_same(group.get_state(not_components=component), select(now, component, False))
    assert leaves(select(later, component, True)).keys() == leaves(select(now, component, True)).keys()
    assert_learners_agree(group)
    group.set_state(group.get_state("learner", not_components=[component]))
    assert_same(group.get_state(), now)


def select(state, component, inside):
    """The leaves under a path, or all others."""
    return {n: leaf for n, leaf in leaves(state).items() if f"{n}/".startswith(f"{component}/") == inside}


def test_update_save_restore_update_equals_the_uninterrupted_run(open_group, num_learners, tmp_path, cluster_client):
    """Weights, targets, moments, schedules, noise, the order of rows, the place in the data, the counts."""
    data = Sharded()
    group = open_group(num_learners, {**IQL, "grad_clip": 0.5}, num_steps=20)
    iterators = [[rows_of(4, 10 * rank + k) for k in range(3)] for rank in range(len(group))]

    def go_on(group):
        group.update_from_iterators(data, num_iters=3)
        group.update_from_batch(rows_of(12), num_epochs=2, minibatch_size=3, shuffle_batch_per_epoch=True)
        group.update_from_iterators(iterators, num_iters=2)

    go_on(group)
    path = group.save_to_path(tmp_path / "checkpoint")
    go_on(group)
    with LearnerGroup.from_checkpoint(path, client=cluster_client) as restored:
        go_on(restored)
        assert_same(restored.get_state(), group.get_state())
        for mine, other in zip(ask(restored, everything), ask(group, everything), strict=True):
            assert all(itertools.starmap(np.array_equal, zip(mine, other, strict=True)))


def test_without_a_path_a_checkpoint_is_a_temporary_directory(group, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = group.save_to_path(), group.save_to_path()
    assert first != second
    assert {first.parents[1], second.parents[1]} == {tmp_path}
    before = group.get_state()
    train(group, 0, 1)
    group.restore_from_path(first)
    assert_same(group.get_state(), before)


def test_what_the_group_tells_of_itself(group):
    train(group, 0, 2)
    stats = group.get_stats()
    assert stats.pop("steps") == dict.fromkeys(range(len(group)), 12 // len(group))
    assert stats.pop("generation") == (0 if group.is_local else 1)
    assert stats == {
        "num_learners": len(group),
        "num_healthy_learners": len(group),
        "num_update_calls": 2,
        "num_requests_in_flight": 0,
        "num_lost_requests": 0,
        "num_dropped_requests": 0,
        "num_dropped_rows": 0,
        "num_uncounted_requests": 0,
        "num_restarts": 0,
    }


def test_what_is_no_network_is_shared_and_saved_too(open_group, num_learners, tmp_path, cluster_client):
    """A bare parameter and moving statistics, such as a temperature and norms are."""
    spec = RLModuleSpec(SPEC.observation_space, SPEC.action_space, BufferedModule)
    group = open_group(num_learners, {"name": "bc"}, module_spec=spec, learner_class=BufferedLearner)
    before = group.get_weights()["default_module"]
    assert {"log_alpha", "mean", "count"} <= set(before)
    for seed in range(3):
        group.update_from_batch(rows_of(7, seed))
    after = group.get_weights()["default_module"]
    for name in ("log_alpha", "mean", "count"):
        assert not torch.equal(after[name], before[name]), name
    assert int(after["count"]) == 3
    assert_learners_agree(group)
    path = group.save_to_path(tmp_path / "checkpoint")
    with LearnerGroup.from_checkpoint(path, client=cluster_client, learner_class=BufferedLearner) as restored:
        for each in (group, restored):
            each.update_from_batch(rows_of(7, 3))
        assert_same(restored.get_state(), group.get_state())


def test_a_learning_rate_that_was_changed_on_restoring_is_used(group, tmp_path, cluster_client):
    train(group, 0, 2)
    path = group.save_to_path(tmp_path / "checkpoint")
    changed = {**IQL, "hidden_sizes": [5, 4], "learning_rate": 0.5}
    algorithm = type(group.config.algorithm).model_validate(group.config.algorithm.model_dump() | changed)
    config = group.config.model_copy(update={"algorithm": algorithm})
    with LearnerGroup.from_checkpoint(path, config=config, client=cluster_client) as restored:
        assert_same(restored.get_state("learner/optimizers"), group.get_state("learner/optimizers"))
        result = restored.update_from_batch({"a": rows_of(6)})[0]
        assert result["a"]["learning_rate/critic"] == 0.5
        # and the numbers that are no state stay plain numbers
        kinds = ask(
            restored,
            lambda learner: [
                (type(beta).__name__, float(group["lr"]))
                for optimizer in learner.optimizers.values()
                for group in optimizer.optimizer.param_groups
                for beta in group["betas"]
            ],
        )
        for each in kinds:
            assert {kind for kind, _ in each} == {"float"}
            assert 0.5 in {rate for _, rate in each}


def test_errors_on_a_learner_and_missing_parts_are_raised(group, tmp_path, open_group):
    path = group.save_to_path(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match="learner/rl_module/c"):
        group.restore_from_path(path, component="learner/rl_module/c")
    other = open_group(0, {"name": "iql", "hidden_sizes": [6]}, module_spec=TWO_MODULES)
    foreign = other.save_to_path(tmp_path / "other")
    before = flat(group.get_weights())
    with pytest.raises(ConfigError, match="module state"):
        group.restore_from_path(foreign)
    with pytest.raises(ConfigError, match="'x'"):
        group.set_state({"learner": {"rl_module": {"a": group.get_weights()["b"], "x": {}}}})
    with pytest.raises(CheckpointError, match="optimizer state: got a/nothing"):
        group.set_state({"learner": {"optimizers": {"a": {"nothing": {}}}}})
    np.testing.assert_array_equal(flat(group.get_weights()), before)
    train(group, 0, 1)
    assert_learners_agree(group)


def test_weights_with_an_older_number_are_taken_only_when_forced(group):
    initial = group.get_state()
    train(group, 0, 2)
    trained, weights = flat(group.get_weights()), initial["learner"]["rl_module"]
    assert not group.set_weights(weights, weights_seq_no=1)
    group.set_state(initial, force=False)
    np.testing.assert_array_equal(flat(group.get_weights()), trained)
    assert group.set_weights({"a": weights["a"]}, weights_seq_no=1, force=True)
    np.testing.assert_array_equal(flat(group.get_weights(["a"])), flat({"a": weights["a"]}))
    assert group.set_weights(weights)
    np.testing.assert_array_equal(flat(group.get_weights()), flat(weights))
    assert_learners_agree(group)


def test_weights_by_module_and_for_acting(group):
    assert set(group.get_weights()) == {"a", "b"}
    assert set(group.get_weights(["b"])) == {"b"}
    acting = group.get_weights(["a"], inference_only=True)["a"]
    assert {name.split(".")[0] for name in acting} == {"policy"}
    with pytest.raises(ConfigError, match="'c'"):
        group.get_weights(["c"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_on_one_learner_skips_the_step_on_all(open_group, num_learners, bad):
    group = open_group(num_learners, IQL)
    group.update_from_batch(rows_of(6))
    before = group.get_state(not_components=["learner/counters", "learner/lifetime"])
    batch = rows_of(6, 1)
    batch["rewards"][0] = bad
    results = group.update_from_batch(batch)
    assert [result["all_modules"]["num_skipped_steps"] for result in results] == [1] * len(group)
    assert_same(group.get_state(not_components=["learner/counters", "learner/lifetime"]), before)
    stopping = open_group(num_learners, IQL, on_nonfinite="raise")
    weights = flat(stopping.get_weights())
    with pytest.raises(LearnerError, match="not finite"):
        stopping.update_from_batch(batch)
    np.testing.assert_array_equal(flat(stopping.get_weights()), weights)
    stopping.update_from_batch(rows_of(6))
    assert_learners_agree(stopping)


def test_counters_run_over_all_update_calls_and_are_saved(open_group, num_learners, tmp_path, cluster_client):
    """One call of many steps, many calls of one step, or a restored run: schedules see the same steps."""
    settings = {"name": "iql", "learning_rate": 0.05}
    rates, weights = [], []
    for sizes in ([8], [1] * 8, [3, 5]):
        group = open_group(num_learners, settings, num_steps=8)
        for number, num_iters in enumerate(sizes):
            if number == 1 and len(sizes) == 2:
                path = group.save_to_path(tmp_path / "checkpoint")
                group.shutdown()
                group = LearnerGroup.from_checkpoint(path, client=cluster_client)
            result = group.update_from_iterators(Sharded(), num_iters=num_iters)[0]
        rates.append(result["default_module"]["learning_rate/policy"])
        weights.append(flat(group.get_weights()))
        group.shutdown()
    assert len(set(rates)) == 1
    assert 0 < rates[0] < 0.05 / 4, "the policy's rate went down along its cosine"
    for other in weights[1:]:
        np.testing.assert_array_equal(weights[0], other)
