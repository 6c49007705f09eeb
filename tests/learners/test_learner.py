import numpy as np
import numpy.testing as npt
import pytest
import torch
from learner_cases import make_batch, make_learner, update, weights
from learner_peers import run_in_threads

from dask_rl.learners.batch import split_batch
from dask_rl.learners.collective import SingleProcess
from dask_rl.learners.iterator import IterableSource
from dask_rl.learners.learner import Learner
from dask_rl.learners.request import UpdateRequest
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


def test_images_stay_bytes_until_a_network_takes_them_and_other_bytes_become_floats():
    learner = make_learner({"name": "bc"}, "discrete-images")
    images = make_batch("discrete-images", 4)
    assert learner._cast(images)["observations"] is images["observations"]
    numbers = {"observations": torch.arange(6, dtype=torch.uint8).reshape(2, 3)}
    assert learner._cast(numbers)["observations"].dtype == torch.float64
    nested = make_batch("continuous-nested", 4)
    cast = learner._cast(
        {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in nested.items()}
    )
    assert cast["observations/pose/0"].dtype == torch.float64
    assert {cast[f"observations/{path}"].dtype for path in ("camera", "flags", "pose/1")} == {
        torch.uint8,
        torch.int8,
        torch.int64,
    }
