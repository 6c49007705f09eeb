"""Requests, iterators and groups of a learner."""

import numpy as np
import numpy.testing as npt
import pytest
import torch
from learner_cases import ShardedSource, make_batch, make_learner, update, weights
from learner_peers import run_in_threads

from dask_rl.learners.batch import split_batch
from dask_rl.learners.collective import SingleProcess
from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.iterator import IterableSource
from dask_rl.learners.learner import Learner
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


# -- requests ----------------------------------------------------------------------------------------------------


def test_minibatches():
    learner = make_learner({"name": "bc"})
    request = {"batch": {"default_module": make_batch("continuous", 10)}, "num_minibatches": 5, "minibatch_size": 4}
    result = learner.run(UpdateRequest(1, **request))
    assert result["all_modules"]["num_steps"] == result["all_modules"]["step"] == 5
    assert result["default_module"]["num_rows"] == 20
    ends = []
    for seed in (None, 1, 1, 2):
        other = make_learner({"name": "bc"})
        other.run(UpdateRequest(1, **request, shuffle_seed=seed))
        ends.append(weights(other)["policy.log_std"])
    assert np.array_equal(ends[0], weights(learner)["policy.log_std"])
    assert np.array_equal(ends[1], ends[2])
    assert not np.array_equal(ends[1], ends[3])
    assert not np.array_equal(ends[0], ends[1])


def test_episodes():
    def episode(length, seed):
        batch = make_batch("continuous", length + 1, seed)
        ends = np.zeros(length, bool)
        ends[-1] = True
        return Episode(
            batch["observations"].float().numpy(),
            batch["actions"][:-1].float().numpy(),
            batch["rewards"][:-1].float().numpy(),
            ends,
            np.zeros(length, bool),
        )

    learner = make_learner({"name": "iql"})
    result = learner.run(UpdateRequest(1, episodes=[episode(4, 0), episode(7, 1)], num_minibatches=3, minibatch_size=4))
    assert result["default_module"]["num_rows"] == 12
    assert np.isfinite(result["default_module"]["critic_loss"])


def test_the_result_tells_what_happened():
    learner = make_learner({"name": "iql", "learning_rate": 0.02, "policy_schedule": "cosine"}, num_steps=4)
    source = IterableSource([make_batch("continuous", 6)], "x")
    result = learner.run(UpdateRequest(7, source=source, num_iters=3, timesteps={"env": 5}, return_state=True))
    mine, all_modules = result["default_module"], result["all_modules"]
    for key in ("total_loss", "value_loss", "policy_loss", "critic_loss", "gradient_norm/critic"):
        assert isinstance(mine[key], float)
    assert (mine["num_rows"], mine["batch_size"], mine["weights_seq_no"]) == (18, 6, 7)
    assert (mine["num_rows_lifetime"], mine["num_steps_lifetime"]) == (18, 3)
    assert mine["learning_rate/critic"] == 0.02
    assert mine["learning_rate/policy"] == pytest.approx(0.01)  # step 2 of 4
    assert all_modules["weights_seq_no"] == 7
    assert all_modules["timesteps"] == {"env": 5}
    parts = [all_modules[f"seconds_{name}"] for name in ("waiting", "computing", "exchanging")]
    assert 0 < sum(parts) <= all_modules["seconds"]
    assert all_modules["steps_per_second"] == pytest.approx(3 / all_modules["seconds"])
    state = result["_rl_module_state_after_update"]["rl_module"]["default_module"]
    assert all(name.startswith("policy.") for name in state)
    assert np.array_equal(state["policy.log_std"].numpy(), weights(learner)["policy.log_std"])


def test_lifetime_counts_are_of_all_learners_and_survive_a_checkpoint(tmp_path):
    learners = [make_learner({"name": "bc"}) for _ in range(2)]
    poisoned = make_batch("continuous", 4)
    poisoned["observations"][0] = torch.inf

    def work(collective):
        learner = learners[collective.rank]
        learner.join(collective)
        rows = (4, 6)[collective.rank]
        update(learner, make_batch("continuous", rows), poisoned)
        return update(learner, make_batch("continuous", rows, 1))["default_module"]

    for result, rows in zip(run_in_threads(2, work), (4, 6), strict=True):
        assert result["num_rows"] == rows
        assert result["num_rows_lifetime"] == 2 * 10, "not those of a step that was skipped"
        assert result["num_steps_lifetime"] == 2
    learners[0].save_to_path(tmp_path / "c")
    other = make_learner({"name": "bc"})
    other.restore_from_path(tmp_path / "c")
    result = update(other, make_batch("continuous", 5))["default_module"]
    assert (result["num_rows_lifetime"], result["num_steps_lifetime"]) == (25, 3)


class Hooked(Learner):
    def before_gradient_based_update(self, timesteps, **kwargs):
        self.calls = [("before", timesteps, kwargs, self.step)]

    def after_gradient_based_update(self, timesteps, **kwargs):
        self.calls.append(("after", timesteps, kwargs, self.step))


def test_hooks_surround_an_update_call():
    learner = make_learner({"name": "bc"}, learner_class=Hooked)
    source = IterableSource([make_batch("continuous", 6)], "x")
    learner.run(UpdateRequest(1, source=source, num_iters=3, timesteps={"t": 1}, kwargs={"k": 2}))
    assert learner.calls == [("before", {"t": 1}, {"k": 2}, 0), ("after", {"t": 1}, {"k": 2}, 3)]


class Detaching(Learner):
    """A user's stage that lets go of the gradients, as many a training loop does."""

    def compute_gradients(self, phases, batches, noise):
        self.module.zero_grad(set_to_none=True)
        return super().compute_gradients(phases, batches, noise)


def test_a_stage_may_set_gradients_to_none():
    plain, detaching = (make_learner({"name": "iql"}, learner_class=cls) for cls in (Learner, Detaching))
    for learner in (plain, detaching):
        update(learner, make_batch("continuous", 6), make_batch("continuous", 6, 1))
    assert same(weights(plain), weights(detaching))


def test_the_example_of_the_documentation():
    spec = make_learner({"name": "iql"}).module_spec.modules["default_module"]
    learner = Learner(
        LearnerGroupConfig(algorithm={"name": "iql"}, learners=LearnersConfig(precision="fp64", compile="off")),
        MultiRLModuleSpec.of(RLModuleSpec(spec.observation_space, spec.action_space)),
    )
    learner.build()
    result = learner.run(UpdateRequest(1, source=IterableSource([make_batch("continuous", 8)], "x"), num_iters=3))
    assert result["all_modules"]["step"] == 3
    learner.close()


# -- iterators ---------------------------------------------------------------------------------------------------


class NoiseSeen(Learner):
    def compute_losses(self, module_id, batch, noise, phase):
        self.seen = [*getattr(self, "seen", []), {name: tensor.clone() for name, tensor in noise.items()}]
        return super().compute_losses(module_id, batch, noise, phase)


def test_each_step_has_the_noise_of_its_number_and_shards():
    settings = {"name": "iql", "dropout": 0.5}
    whole, part = (make_learner(settings, learner_class=NoiseSeen) for _ in range(2))
    whole.run(UpdateRequest(1, source=ShardedSource("continuous", (0, 1, 2, 3)), num_iters=2))
    part.run(UpdateRequest(1, source=ShardedSource("continuous", (1, 3)), num_iters=2))
    rows = [3, 4, 5, 9, 10, 11]
    for name in ("policy_dropout_0", "policy_dropout_1"):
        first, second = (noise[name] for noise in whole.seen)
        assert not torch.equal(first, second)
        assert torch.equal(part.seen[0][name], first[rows])
        assert torch.equal(part.seen[1][name], second[rows])


def test_an_iterable_goes_round_and_is_kept_between_calls():
    batches = [make_batch("continuous", 4, seed) for seed in range(3)]
    learner, other = make_learner({"name": "bc"}), make_learner({"name": "bc"})
    for number, num_iters in enumerate((2, 3, 2), 1):
        result = learner.run(UpdateRequest(number, source=IterableSource(batches, "x"), num_iters=num_iters))
        assert result["all_modules"]["num_steps"] == num_iters
    update(other, *(batches[i % 3] for i in range(7)))
    assert same(weights(learner), weights(other))
    assert learner.get_state("iterators") == {"iterators": {"x": {"step": 7}}}


@pytest.mark.parametrize("source", ["batch", "iterator"])
def test_data_of_another_dtype_is_cast(source):
    batch = make_batch("continuous", 6)
    for name in ("observations", "next_observations"):
        batch[name] = (10 * batch[name]).round().to(torch.int16)
    batch["rewards"] = batch["rewards"].float()
    exact = {name: tensor.double() if tensor.dtype != torch.bool else tensor for name, tensor in batch.items()}
    learner, other = make_learner({"name": "iql"}), make_learner({"name": "iql"})
    update(other, exact)
    if source == "batch":
        update(learner, batch)
    else:
        learner.run(UpdateRequest(1, source=IterableSource([batch], "x")))
    assert same(weights(learner), weights(other))


def test_an_empty_iterable_is_named():
    learner = make_learner({"name": "bc"})
    with pytest.raises(ConfigError, match="iterator 'empty': got no batch"):
        learner.run(UpdateRequest(1, source=IterableSource([], "empty")))
    spent = iter([make_batch("continuous", 4)])
    with pytest.raises(ConfigError, match="iterator 'spent': got no batch"):
        learner.run(UpdateRequest(1, source=IterableSource(spent, "spent"), num_iters=2))


def test_a_changed_source_of_the_same_key_is_opened_anew():
    learner = make_learner({"name": "bc"})
    learner.run(UpdateRequest(1, source=ShardedSource("continuous", (0, 1)), num_iters=2))
    first = learner.iterators["sharded"]
    learner.run(UpdateRequest(2, source=ShardedSource("continuous", (0, 1)), num_iters=1))
    assert learner.iterators["sharded"] is first
    learner.run(UpdateRequest(3, source=ShardedSource("continuous", (2, 3)), num_iters=1))
    assert learner.iterators["sharded"].shards == (2, 3)


# -- groups ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_of_rank", [(3, 0), (0, 3), (3, 3)])
def test_joining_takes_over_everything_of_rank_0(steps_of_rank):
    settings = {"name": "iql", "policy_schedule": "cosine"}
    learners = [make_learner(settings, num_steps=20, seed=seed) for seed in (0, 1)]
    for learner, steps in zip(learners, steps_of_rank, strict=True):
        for seed in range(steps):
            update(learner, make_batch("continuous", 6, seed))
    alone = make_learner(settings, num_steps=20)
    alone.set_state(learners[0].get_state())

    def work(collective):
        learner = learners[collective.rank]
        learner.join(collective)
        joined = learner.flat.data.clone()
        for seed in range(2):
            update(learner, split_batch(make_batch("continuous", 6, 10 + seed), 2)[collective.rank])
        return joined, learner.flat.data.clone(), weights(learner), (learner.step, learner.weights_seq_no)

    first, second = run_in_threads(2, work)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert same(first[2], second[2])
    assert first[3] == second[3] == (steps_of_rank[0] + 2, steps_of_rank[0] + 2)
    update(alone, make_batch("continuous", 6, 10), make_batch("continuous", 6, 11))
    for name, value in weights(alone).items():
        npt.assert_allclose(second[2][name], value, rtol=1e-10, atol=1e-13)


def test_a_group_of_one_is_no_group():
    learner = make_learner({"name": "bc"})
    before = learner.flat.data.clone()
    learner.join(SingleProcess())
    assert torch.equal(learner.flat.data, before)
