"""LearnerGroup, in process and on two learner processes."""

import threading

import numpy as np
import pytest
import torch
from group_cases import BreakingLearner
from gymnasium.spaces import Box

from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import CheckpointError, ConfigError, LearnerError

SPEC = RLModuleSpec(Box(-np.inf, np.inf, (5,)), Box(-1, 1, (2,)))


def make_config(num_learners: int, **settings) -> LearnerGroupConfig:
    return LearnerGroupConfig(
        algorithm={"name": "iql", "hidden_sizes": [16, 16], **settings},
        learners=LearnersConfig(num_learners=num_learners, compile="off", num_threads_per_learner=1),
    )


@pytest.fixture(params=[0, 2], ids=["local", "two learners"])
def group(request, cluster_client):
    settings = {"module_spec": SPEC, "client": cluster_client, "learner_class": BreakingLearner}
    with LearnerGroup(make_config(request.param), **settings) as group:
        yield group


def make_batch(rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "observations": torch.randn(rows, 5, generator=generator),
        "actions": torch.rand(rows, 2, generator=generator) * 2 - 1,
        "rewards": torch.randn(rows, generator=generator),
        "terminations": (torch.rand(rows, generator=generator) < 0.1).float(),
        "next_observations": torch.randn(rows, 5, generator=generator),
        "next_valid": torch.ones(rows, dtype=torch.bool),
    }


def make_episode(length: int, seed: int) -> Episode:
    rng = np.random.default_rng(seed)
    flags = np.zeros(length, np.bool_)
    last = flags.copy()
    last[-1] = True
    return Episode(
        observations=rng.normal(size=(length + 1, 5)).astype(np.float32),
        actions=rng.uniform(-1, 1, (length, 2)).astype(np.float32),
        rewards=rng.normal(size=length).astype(np.float32),
        terminations=flags,
        truncations=last,
    )


def flat(weights) -> np.ndarray:
    return np.concatenate([np.asarray(w).reshape(-1) for m in sorted(weights) for _, w in sorted(weights[m].items())])


def mean_weights(group: LearnerGroup) -> list[float]:
    # A lambda, as workers cannot import the tests.
    return [result.get() for result in group.foreach_learner(lambda learner: float(learner.flat.data.double().mean()))]


def test_kinds_and_lengths(group):
    assert group.is_local != group.is_remote
    assert len(group) == (1 if group.is_local else 2)
    assert group.get_stats()["num_healthy_learners"] == len(group)


def test_one_result_per_learner_keyed_by_module(group):
    results = group.update_from_batch(make_batch(10), timesteps={"total": 3})
    assert len(results) == len(group)
    for result in results:
        assert set(result) == {"default_module", "all_modules"}
        assert result["default_module"]["total_loss"] == pytest.approx(
            sum(result["default_module"][f"{name}_loss"] for name in ("value", "critic", "policy"))
        )
        assert result["all_modules"]["timesteps"] == {"total": 3}
    assert sum(result["default_module"]["num_rows"] for result in results) == 10


def test_weights_stay_equal_on_all_learners(group):
    for seed in range(5):
        group.update_from_batch(make_batch(11, seed))
    means = mean_weights(group)
    assert len(set(means)) == 1
    assert set(group.get_stats()["steps"].values()) == {5}


def test_two_learners_do_what_one_does(cluster_client):
    weights = []
    for num_learners in (0, 1, 2):
        with LearnerGroup(make_config(num_learners), module_spec=SPEC, client=cluster_client) as group:
            for seed in range(3):
                group.update_from_batch(make_batch(5, seed))  # parts of 2 and 3 rows
            weights.append(flat(group.get_weights()))
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_allclose(weights[2], weights[0], rtol=2e-4, atol=1e-6)


def test_minibatches_and_epochs(group):
    rows = 64 * len(group)
    results = group.update_from_batch(make_batch(rows), num_epochs=2, minibatch_size=24, shuffle_batch_per_epoch=True)
    assert [result["all_modules"]["num_steps"] for result in results] == [6] * len(group)  # ceil(2 · 64 / 24)
    assert [result["default_module"]["num_rows"] for result in results] == [6 * 24] * len(group)


def test_a_module_without_a_row_on_some_learner_is_skipped_on_all(cluster_client):
    with LearnerGroup(make_config(2), module_spec=SPEC, client=cluster_client) as group:
        before = flat(group.get_weights())
        results = group.update_from_batch(make_batch(1))
        assert [result["all_modules"]["num_skipped_steps"] for result in results] == [1, 1]
        np.testing.assert_array_equal(flat(group.get_weights()), before)
        group.update_from_batch(make_batch(2))
        assert not np.array_equal(flat(group.get_weights()), before)


def test_update_from_episodes(group):
    episodes = [make_episode(length, seed) for seed, length in enumerate((10, 21, 3, 4, 35))]
    results = group.update_from_episodes(episodes)
    assert sum(result["default_module"]["num_rows"] for result in results) == 73
    means = set(mean_weights(group))
    assert len(means) == 1
    with pytest.raises(ConfigError, match="episodes"):
        group.update_from_episodes([])


def test_update_from_iterables_starts_the_next_epoch(group):
    batches = [[make_batch(4, seed) for seed in range(3)] for _ in range(len(group))]
    results = group.update_from_iterators(batches, num_iters=7)
    assert [result["all_modules"]["num_steps"] for result in results] == [7] * len(group)
    with pytest.raises(ConfigError, match="one per learner"):
        group.update_from_iterators(batches * 2, num_iters=1)
    with pytest.raises(ConfigError, match="no batch"):
        group.update_from_iterators([[] for _ in range(len(group))], num_iters=1)
    group.update_from_iterators(batches, num_iters=1)
    assert set(group.get_stats()["steps"].values()) == {8}


def test_return_state_is_what_acting_needs(group):
    results = group.update_from_batch(make_batch(8), return_state=True)
    assert ["_rl_module_state_after_update" in result for result in results] == [True] + [False] * (len(group) - 1)
    state = results[0]["_rl_module_state_after_update"]["rl_module"]["default_module"]
    weights = group.get_weights()["default_module"]
    assert {name for name in weights if name.startswith("policy.")} == set(state)
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=0)


def test_unknown_modules_are_refused(group):
    with pytest.raises(ConfigError, match="stranger"):
        group.update_from_batch({"stranger": make_batch(8)})
    group.update_from_batch(make_batch(8))


def test_an_error_in_the_loss_is_raised_with_its_traceback_and_the_next_update_trains(group):
    before = flat(group.get_weights())
    broken = make_batch(8) | {"breaks": torch.ones(8)}
    with pytest.raises(LearnerError, match="RuntimeError") as caught:
        group.update_from_batch(broken)
    assert "losses" in "".join(caught.value.__notes__)
    np.testing.assert_array_equal(flat(group.get_weights()), before)
    group.update_from_batch(make_batch(8))
    assert not np.array_equal(flat(group.get_weights()), before)
    assert len(set(mean_weights(group))) == 1


def test_foreach_learner_reports_values_and_errors(group):
    last = len(group) - 1
    results = group.foreach_learner(lambda learner, last: 1 // (last - learner.collective.rank), last=last)
    assert [result.actor_id for result in results] == list(range(len(group)))
    assert [result.ok for result in results] == [True] * last + [False]
    assert isinstance(results[-1].error, LearnerError)
    assert "ZeroDivisionError" in str(results[-1].error)
    assert group.foreach_learner(lambda learner: 1, remote_actor_ids=[]) == []


def test_state_selects_components_in_both_directions(group):
    group.update_from_batch(make_batch(8))
    state = group.get_state("learner/rl_module/default_module")
    assert set(state["learner"]) == {"rl_module"}
    assert set(group.get_state(not_components="learner/optimizers")["learner"]) == {
        "rl_module",
        "counters",
        "lifetime",
        "iterators",
    }
    group.update_from_batch(make_batch(8, 1))
    step = group.get_state("learner/counters")["learner"]["counters"]["step"]
    group.set_state(state)
    np.testing.assert_array_equal(flat(group.get_weights()), flat(state["learner"]["rl_module"]))
    assert group.get_state("learner/counters")["learner"]["counters"]["step"] == step == 2
    assert len(set(mean_weights(group))) == 1


def test_save_and_restore_continue_exactly(group, tmp_path, cluster_client):
    group.update_from_batch(make_batch(8))
    path = group.save_to_path(tmp_path / "checkpoint")
    for seed in (1, 2):
        group.update_from_batch(make_batch(8, seed))
    wanted = flat(group.get_weights())
    with LearnerGroup.from_checkpoint(path, client=cluster_client) as restored:
        assert len(restored) == len(group)
        for seed in (1, 2):
            restored.update_from_batch(make_batch(8, seed))
        np.testing.assert_array_equal(flat(restored.get_weights()), wanted)
        assert restored.get_stats()["steps"] == group.get_stats()["steps"]
    group.restore_from_path(path, component="learner/rl_module/default_module")
    with pytest.raises(CheckpointError, match="nothing"):
        group.restore_from_path(path, component="learner/nothing")


def test_several_modules_train_side_by_side(cluster_client):
    spec = MultiRLModuleSpec({"a": SPEC, "b": SPEC})
    with LearnerGroup(make_config(2), module_spec=spec, client=cluster_client) as group:
        results = group.update_from_batch({"a": make_batch(8), "b": make_batch(6, 1)})
        assert set(results[0]) == {"a", "b", "all_modules"}
        before = group.get_weights()
        assert set(group.update_from_batch({"a": make_batch(8)})[0]) == {"a", "all_modules"}
        after = group.get_weights()
        np.testing.assert_array_equal(flat({"b": after["b"]}), flat({"b": before["b"]}))
        assert not np.array_equal(flat({"a": after["a"]}), flat({"a": before["a"]}))


def test_more_learners_than_workers_is_one_clear_error(cluster_client):
    config = make_config(3)
    config = config.model_copy(update={"learners": config.learners.model_copy(update={"workers_timeout_seconds": 0.5})})
    with pytest.raises(ConfigError, match=r"got 3, and 2 usable workers of 2"):
        LearnerGroup(config, module_spec=SPEC, client=cluster_client)


def test_shutdown_is_idempotent_and_ends_use(group):
    group.shutdown()
    group.shutdown()
    with pytest.raises(ConfigError, match="shutdown"):
        group.update_from_batch(make_batch(8))


def test_what_cannot_travel_is_an_error_and_no_hang(cluster_client):
    with LearnerGroup(make_config(2), module_spec=SPEC, client=cluster_client) as group:
        lock = threading.Lock()
        with pytest.raises(TypeError, match="cannot pickle"):
            group.foreach_learner(lambda learner: lock)
        results = group.foreach_learner(lambda learner: __import__("threading").Lock())
        assert [type(result.error) for result in results] == [LearnerError] * 2
        group.update_from_batch(make_batch(8))


def test_after_a_failed_step_all_learners_go_on_with_the_batch_that_failed(group):
    batches = [[make_batch(4, seed) for seed in range(6)] for _ in range(len(group))]
    group.update_from_iterators(batches, num_iters=2)
    # Learner 0 fails behind its third batch, its peer in the exchange of that step.
    group.foreach_learner(lambda learner: setattr(learner, "compute_gradients", None), remote_actor_ids=[0])
    with pytest.raises(LearnerError, match="NoneType"):
        group.update_from_iterators(batches, num_iters=1)
    group.foreach_learner(lambda learner: delattr(learner, "compute_gradients"), remote_actor_ids=[0])
    group.update_from_iterators(batches, num_iters=1)
    steps = [result.get() for result in group.foreach_learner(lambda learner: list(learner.iterator_steps.values()))]
    assert steps == [[3]] * len(group)
    assert set(group.get_stats()["steps"].values()) == {3}

    with LearnerGroup(make_config(0), module_spec=SPEC) as undisturbed:
        doubled = [{name: torch.cat([tensor] * len(group)) for name, tensor in batch.items()} for batch in batches[0]]
        undisturbed.update_from_iterators([doubled], num_iters=3)
        np.testing.assert_allclose(flat(group.get_weights()), flat(undisturbed.get_weights()), rtol=2e-4, atol=1e-6)
