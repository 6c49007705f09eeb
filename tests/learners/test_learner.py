import numpy as np
import numpy.testing as npt
import pytest
import torch
from learner_cases import make_batch, make_learner, update, weights
from learner_peers import run_in_threads

from dask_rl.learners.algorithm import Phase
from dask_rl.learners.batch import split_batch
from dask_rl.learners.collective import SingleProcess
from dask_rl.learners.iterator import IterableSource
from dask_rl.learners.learner import Learner
from dask_rl.learners.request import UpdateRequest
from dask_rl.learners.schedules import TorchSchedule
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


class TorchScheduled(Learner):
    def configure_optimizers_for_module(self, module_id):
        schedule = TorchSchedule(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5), 0.8)
        parameters = list(self.module[module_id].named_parameters())
        self.register_optimizer(module_id, "default", torch.optim.SGD, parameters, schedule)

    def compute_losses(self, module_id, batch, noise, phase):
        return SumOfParameters.compute_losses(self, module_id, batch, noise, phase)

    slope = 1.0


def test_a_torch_scheduler_drives_the_rate_and_goes_on_after_restoring():
    learner = make_learner({"name": "bc"}, learner_class=TorchScheduled)
    moves, rates = [], []
    for step in range(6):
        if step == 3:
            state, learner = learner.get_state(), make_learner({"name": "bc"}, learner_class=TorchScheduled)
            learner.set_state(state)
        before = learner.flat.data.sum()
        rates.append(update(learner, make_batch("continuous", 4))["default_module"]["learning_rate/default"])
        moves.append(float(before - learner.flat.data.sum()))
    count = sum(p.numel() for p in learner.module.parameters())
    assert rates == [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]
    npt.assert_allclose(moves, count * np.array(rates), rtol=1e-9)


class EveryStage(Learner):
    """Overrides all that may be overridden: SGD at rate 1 on the sum of parameters, gradients doubled and negated."""

    def note(self, name):
        self.calls = [*getattr(self, "calls", []), name]

    def build(self):
        self.note("build")
        super().build()

    def configure_optimizers_for_module(self, module_id):
        self.note("configure_optimizers_for_module")
        parameters = list(self.module[module_id].named_parameters())
        self.register_optimizer(module_id, "default", torch.optim.SGD, parameters, 1.0)

    def before_gradient_based_update(self, timesteps, **kwargs):
        self.note("before_gradient_based_update")

    def compute_losses(self, module_id, batch, noise, phase):
        self.note("compute_losses")
        return {"sum_loss": len(batch["rewards"]) * sum(p.sum() for p in self.module[module_id].parameters())}

    def compute_gradients(self, phases, batches, noise):
        self.note("compute_gradients")
        losses = super().compute_gradients(phases, batches, noise)
        self.flat.grad[: self.flat.size] *= 2
        return losses

    def postprocess_gradients(self, keys):
        self.note("postprocess_gradients")
        norms = super().postprocess_gradients(keys)
        self.flat.grad[: self.flat.size] *= -1
        return norms

    def apply_gradients(self, keys):
        self.note("apply_gradients")
        super().apply_gradients(keys)
        self.flat.data.add_(10)

    def after_gradient_based_update(self, timesteps, **kwargs):
        self.note("after_gradient_based_update")


def test_a_subclass_may_override_every_stage():
    learner = make_learner({"name": "bc"}, learner_class=EveryStage)
    before = weights(learner)
    result = update(learner, make_batch("continuous", 4))["default_module"]
    assert learner.calls == [
        "build",
        "configure_optimizers_for_module",
        "before_gradient_based_update",
        "compute_gradients",
        "compute_losses",
        "postprocess_gradients",
        "apply_gradients",
        "after_gradient_based_update",
    ]
    for name, value in weights(learner).items():
        npt.assert_allclose(value, before[name] + 2 + 10, rtol=1e-9)
    assert result["sum_loss"] == pytest.approx(sum(value.sum() for value in before.values()))


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
        together.run(UpdateRequest(seed + 1, batch={"a": batch, "b": make_batch("continuous", 9, seed + 50)}))
        alone.run(UpdateRequest(seed + 1, batch={"a": batch}))
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


class Recording(SingleProcess):
    """Notes when the time limit of exchanges changes."""

    size = 2

    def __init__(self):
        self.calls = []

    def all_reduce_(self, tensor):
        self.calls.append("exchange")

    def set_timeout(self, seconds):
        self.calls.append(seconds)


def test_every_phase_of_the_first_step_may_take_as_long_as_compiling_does():
    collective = Recording()
    settings = {"name": "iql", "update_order": "sequential"}
    learner = make_learner(settings, collective=collective, collective_timeout_seconds=7)
    update(learner, make_batch("continuous", 6), make_batch("continuous", 6))
    exchanges = len(collective.calls) // 2
    assert collective.calls == ["exchange"] * exchanges + [7] + ["exchange"] * exchanges
