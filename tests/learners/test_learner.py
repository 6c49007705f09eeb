import numpy as np
import numpy.testing as npt
import pytest
import torch
from learner_cases import ShardedSource, make_batch, make_learner, update, weights
from learner_peers import run_in_threads

from dask_rl.learners.algorithm import Phase
from dask_rl.learners.batch import split_batch
from dask_rl.learners.collective import SingleProcess
from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.iterator import IterableSource
from dask_rl.learners.learner import Learner
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError, NonFiniteGradientError


class SumOfParameters(Learner):
    """The loss of a row is `slope` times the sum of all parameters."""

    slope = 1.0

    def compute_losses(self, module_id, batch, noise, phase):
        total = sum(p.sum() for p in self.module[module_id].parameters())
        return {"sum_loss": self.slope * len(batch["rewards"]) * total}


def poisoned(kind="continuous", rows=6):
    batch = make_batch(kind, rows)
    batch["observations"][2, 1] = torch.inf
    return batch


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


# -- building ----------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_weights_everywhere_and_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    one, other, third = (weights(make_learner({"name": "iql"}, seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert same(one, other)
    assert not any(np.array_equal(one[n], third[n]) for n in one if "weight" in n)


def test_modules_start_apart():
    learner = make_learner({"name": "bc"}, modules=("a", "b"))
    assert not np.array_equal(
        weights(learner, "a")["policy.network.layers.0.weight"],
        weights(learner, "b")["policy.network.layers.0.weight"],
    )


class OwnOptimizers(Learner):
    def configure_optimizers_for_module(self, module_id):
        named = list(self.module[module_id].named_parameters())
        self.register_optimizer(module_id, "first", torch.optim.SGD, named[:1], [(0, 1.0), (2, 0.0)], momentum=0.0)
        self.register_optimizer(module_id, "rest", torch.optim.SGD, named[1:], lambda step: 0.5)

    def compute_losses(self, module_id, batch, noise, phase):
        return SumOfParameters.compute_losses(self, module_id, batch, noise, phase)

    slope = 1.0


def test_own_optimizers_and_schedules(monkeypatch):
    monkeypatch.setattr("dask_rl.learners.algorithms.bc.BC.phases", lambda self: (Phase("step", ("first", "rest")),))
    learner = make_learner({"name": "bc"}, learner_class=OwnOptimizers)
    first = next(name for name, _ in learner.module["default_module"].named_parameters())
    moves = []
    for _ in range(3):
        before = weights(learner)
        result = update(learner, make_batch("continuous", 4))["default_module"]
        moves.append({name: (before[name] - value).max() for name, value in weights(learner).items()})
        assert result["learning_rate/rest"] == 0.5
    assert [round(move[first], 9) for move in moves] == [1.0, 0.5, 0.0]
    assert all(move[name] == pytest.approx(0.5) for move in moves for name in move if name != first)


class NoParameters(Learner):
    def configure_optimizers_for_module(self, module_id):
        self.register_optimizer(module_id, "o", torch.optim.SGD, [], 0.1)


class TwoOwners(Learner):
    def configure_optimizers_for_module(self, module_id):
        named = list(self.module[module_id].named_parameters())
        self.register_optimizer(module_id, "a", torch.optim.SGD, named, 0.1)
        self.register_optimizer(module_id, "b", torch.optim.SGD, named[:1], 0.1)


def test_registering_nothing_or_twice_is_an_error():
    with pytest.raises(ConfigError, match="optimizer 'o' of module 'default_module': got no parameter"):
        make_learner({"name": "bc"}, learner_class=NoParameters)
    with pytest.raises(ConfigError, match="one optimizer a parameter"):
        make_learner({"name": "bc"}, learner_class=TwoOwners)


# -- steps -------------------------------------------------------------------------------------------------------


def test_100_adam_steps_on_a_sum_of_parameters_move_each_by_100_rates():
    learner = make_learner({"name": "bc", "learning_rate": 1e-3}, learner_class=SumOfParameters)
    before = weights(learner)
    source = IterableSource([make_batch("continuous", 4)], "x")
    learner.run(UpdateRequest(1, source=source, num_iters=100))
    for name, value in weights(learner).items():
        npt.assert_allclose(value - before[name], -0.1, rtol=1e-6)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("value", lambda n, total: 0.5),
        ("norm", lambda n, total: 0.5 / np.sqrt(n)),
        ("global_norm", lambda n, total: 0.5 / np.sqrt(total)),
    ],
)
def test_clipping(by, expected):
    learner = make_learner({"name": "bc", "grad_clip": 0.5, "grad_clip_by": by}, learner_class=SumOfParameters)
    total = sum(p.numel() for p in learner.module.parameters())
    result = update(learner, make_batch("continuous", 4))["default_module"]
    for parameter in learner.module.parameters():
        npt.assert_allclose(parameter.grad.numpy(), expected(parameter.numel(), total), rtol=1e-5)
    assert result["gradient_norm/default"] == pytest.approx(np.sqrt(total)), "the norm before clipping"


def test_clipping_is_per_optimizer_and_off_by_default():
    learner = make_learner({"name": "iql", "grad_clip": 1e-3})
    norms = update(learner, make_batch("continuous", 8))["default_module"]
    for (_, name), segment in learner.flat.segments.items():
        assert norms[f"gradient_norm/{name}"] > 1e-3
        gradient = learner.flat.grad[segment.start : segment.stop]
        assert gradient.norm().item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("settings", [{"name": "bc"}, {"name": "iql"}, {"name": "iql", "update_order": "sequential"}])
def test_a_gradient_that_is_not_finite_skips_the_step(settings):
    learner = make_learner(settings)
    update(learner, make_batch("continuous", 6))
    before, state = weights(learner), learner.get_state(["optimizers"])
    result = update(learner, poisoned())["all_modules"]
    assert (result["num_skipped_steps"], result["num_skipped_steps_lifetime"], result["num_steps"]) == (1, 1, 1)
    assert same(weights(learner), before), "targets too"
    after = learner.get_state(["optimizers"])["optimizers"]["default_module"]
    for name, values in state["optimizers"]["default_module"].items():
        assert all(torch.equal(after[name][key], value) for key, value in values.items())
    result = update(learner, make_batch("continuous", 6))["all_modules"]
    assert (result["num_skipped_steps"], result["num_skipped_steps_lifetime"], result["step"]) == (0, 1, 3)
    assert not same(weights(learner), before)
    assert all(np.isfinite(value).all() for value in weights(learner).values())


def test_a_gradient_that_is_not_finite_stops_the_run_where_asked():
    learner = make_learner({"name": "bc"}, on_nonfinite="raise")
    before = weights(learner)
    with pytest.raises(
        NonFiniteGradientError, match=r"gradient at step 0: got .* not finite in default_module/default"
    ):
        update(learner, poisoned())
    assert same(weights(learner), before)
    update(learner, make_batch("continuous", 6))
    assert learner.step == 1


def test_a_gradient_that_is_not_finite_on_one_learner_skips_the_step_on_all():
    learners = [make_learner({"name": "iql"}) for _ in range(2)]
    before = weights(learners[0])

    def work(collective):
        learner = learners[collective.rank]
        learner.join(collective)
        share = split_batch(poisoned(), 2)[collective.rank]  # the first half only
        assert torch.isfinite(share["observations"]).all() == (collective.rank == 1)
        skipped = update(learner, share)["all_modules"]["num_skipped_steps"]
        skipped_then = weights(learner)
        update(learner, split_batch(make_batch("continuous", 6), 2)[collective.rank])
        return skipped, skipped_then, weights(learner)

    (skipped, first, last), (other_skipped, other_first, other_last) = run_in_threads(2, work)
    assert skipped == other_skipped == 1
    assert same(first, before)
    assert same(other_first, before)
    assert same(last, other_last)
    assert not same(last, before)


def test_a_batch_in_which_no_row_counts_is_skipped():
    learner = make_learner({"name": "iql"})
    before = weights(learner)
    batch = {**make_batch("continuous", 5), "mask": torch.zeros(5, dtype=torch.float64)}
    assert update(learner, batch)["all_modules"]["num_skipped_steps"] == 1
    assert same(weights(learner), before)


# -- modules -----------------------------------------------------------------------------------------------------


def test_only_modules_with_data_are_updated():
    learner = make_learner({"name": "iql"}, modules=("a", "b", "c"))
    both = {"c": make_batch("continuous", 5), "a": make_batch("continuous", 3)}
    before = {module_id: weights(learner, module_id) for module_id in "abc"}
    result = learner.run(UpdateRequest(1, batch=both))
    assert list(result) == ["a", "c", "all_modules"]
    assert (result["a"]["num_rows"], result["c"]["num_rows"]) == (3, 5)
    assert [same(weights(learner, m), before[m]) for m in "abc"] == [False, True, False]
    assert not learner.optimizers["b", "policy"].state_dict(), "a step on a gradient of 0 is not no step"


def test_modules_learn_as_if_alone():
    together = make_learner({"name": "iql"}, modules=("a", "b"))
    alone = make_learner({"name": "iql"}, modules=("a",))
    for seed in range(3):
        batch = make_batch("continuous", 6, seed)
        together.run(UpdateRequest(seed, batch={"a": batch, "b": make_batch("continuous", 9, seed + 50)}))
        alone.run(UpdateRequest(seed, batch={"a": batch}))
    assert same(weights(alone, "a"), weights(together, "a"))


def test_unknown_modules_and_modules_to_skip():
    learner = make_learner({"name": "bc"}, modules=("a", "b"))
    with pytest.raises(ConfigError, match=r"unknown modules \['x'\]; allowed: \['a', 'b'\]"):
        learner.run(UpdateRequest(1, batch={"x": make_batch("continuous", 3)}))
    batch = {"a": make_batch("continuous", 3), "b": make_batch("continuous", 3)}
    result = learner.run(UpdateRequest(1, batch=batch, modules_to_skip=frozenset("a")))
    assert list(result) == ["b", "all_modules"]
    before = weights(learner, "a")
    skip = UpdateRequest(2, batch=batch, modules_to_skip=frozenset("ab"), num_minibatches=3)
    result = learner.run(skip)
    assert result["all_modules"]["num_skipped_steps"] == 3
    assert same(weights(learner, "a"), before)


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
    assert mine["num_rows"] == 18
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


class Hooked(Learner):
    def before_gradient_based_update(self, timesteps):
        self.calls = [("before", timesteps, self.step)]

    def after_gradient_based_update(self, timesteps):
        self.calls.append(("after", timesteps, self.step))


def test_hooks_surround_an_update_call():
    learner = make_learner({"name": "bc"}, learner_class=Hooked)
    source = IterableSource([make_batch("continuous", 6)], "x")
    learner.run(UpdateRequest(1, source=source, num_iters=3, timesteps={"t": 1}))
    assert learner.calls == [("before", {"t": 1}, 0), ("after", {"t": 1}, 3)]


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


def test_an_iterable_goes_round_and_is_kept_between_calls():
    batches = [make_batch("continuous", 4, seed) for seed in range(3)]
    learner, other = make_learner({"name": "bc"}), make_learner({"name": "bc"})
    for number, num_iters in enumerate((2, 3, 2)):
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
