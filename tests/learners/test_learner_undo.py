"""A step that fails half-way, or is skipped, leaves everything as it was."""

import pytest
import torch
from learner_cases import make_batch, make_learner, update

from dask_rl.learners.batch import DEFAULT_MODULE_ID
from dask_rl.learners.collective import SingleProcess
from dask_rl.learners.learner import Learner
from dask_rl.storage.errors import NonFiniteGradientError, PeersLostError

SEQUENTIAL = {"name": "iql", "update_order": "sequential"}


class BadPhase(Learner):
    """One phase of one step has a gradient that is not finite, or fails."""

    bad = (None, None)
    error = None

    def compute_gradients(self, phases, batches, noise):
        losses = super().compute_gradients(phases, batches, noise)
        if (self.step, next(iter(phases.values())).name) == self.bad:
            if self.error is not None:
                raise self.error
            self.flat.grad[: self.flat.size].fill_(torch.nan)
        return losses

    def get_everything(self):
        return [tensor.clone() for tensor in self._shared_tensors()]


def equal(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("phase", ["value", "policy", "critic"])
@pytest.mark.parametrize("step", [0, 2])
def test_a_later_phase_that_is_not_finite_takes_the_whole_step_back(phase, step):
    learner = make_learner(SEQUENTIAL, learner_class=BadPhase)
    learner.bad = (step, phase)
    update(learner, *(make_batch("continuous", 6, seed) for seed in range(step)))
    before = learner.get_everything()
    result = update(learner, make_batch("continuous", 6, step))["all_modules"]
    assert equal(learner.get_everything(), before), "weights, targets, optimizer state"
    assert (result["num_skipped_steps"], result["step"]) == (1, step + 1)
    update(learner, make_batch("continuous", 6, 9))
    other = make_learner(SEQUENTIAL, learner_class=BadPhase)
    update(other, *(make_batch("continuous", 6, seed) for seed in range(step)))
    other.step += 1
    update(other, make_batch("continuous", 6, 9))
    assert equal(learner.get_everything(), other.get_everything())


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt()])
def test_a_later_phase_that_fails_takes_the_whole_step_back(error):
    learner, other = (make_learner(SEQUENTIAL, learner_class=BadPhase) for _ in range(2))
    update(learner, make_batch("continuous", 6))
    before, position = learner.get_everything(), learner.position()
    learner.bad, learner.error = (1, "critic"), error
    with pytest.raises(type(error)):
        update(learner, make_batch("continuous", 6, 1))
    assert equal(learner.get_everything(), before)
    assert (learner.step, learner.num_skipped_steps) == (position.step, 0)
    learner.error, learner.bad = None, (None, None)
    result = update(learner, make_batch("continuous", 6, 1))
    expected = update(other, make_batch("continuous", 6), make_batch("continuous", 6, 1))
    assert equal(learner.get_everything(), other.get_everything())
    for key in ("value_loss", "policy_loss", "critic_loss", "num_rows"):
        assert result[DEFAULT_MODULE_ID][key] == expected[DEFAULT_MODULE_ID][key], "what failed is not counted twice"


def test_raising_on_a_later_phase_takes_the_step_back_too():
    learner = make_learner(SEQUENTIAL, learner_class=BadPhase, on_nonfinite="raise")
    learner.bad = (0, "critic")
    before = learner.get_everything()
    with pytest.raises(NonFiniteGradientError):
        update(learner, make_batch("continuous", 6))
    assert equal(learner.get_everything(), before)


def test_a_single_phase_of_stages_that_are_built_in_makes_no_copy():
    learner = make_learner({"name": "iql"})
    learner._undo[DEFAULT_MODULE_ID].remember = lambda: pytest.fail("a copy was taken")
    update(learner, make_batch("continuous", 6))
    assert not learner._undo_buffers[DEFAULT_MODULE_ID]._copies, "those of the scaling of actions stay as they are"


def count_losses(learner, in_place=True):
    """Have the loss count its calls in a buffer of the module."""
    module = learner.module[DEFAULT_MODULE_ID]
    module.register_buffer("count", torch.zeros(()))
    learner._build_storage()
    plain = learner.compute_losses

    def counting(*args):
        if in_place:
            module.count += 1
        else:
            module.count = module.count + 1
        return plain(*args)

    learner.compute_losses = counting
    return module


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    ("settings", "phase"), [(SEQUENTIAL, "critic"), ({"name": "iql"}, "step"), ({"name": "bc"}, "step")]
)
@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_buffers_that_losses_write_to_are_put_back(settings, phase, error, in_place):
    learner = make_learner(settings, learner_class=BadPhase)
    module = count_losses(learner, in_place)
    num_phases = 3 if settings is SEQUENTIAL else 1
    update(learner, make_batch("continuous", 6))
    assert module.count == num_phases
    before = learner.get_everything()
    learner.bad, learner.error = (1, phase), error
    if error is None:
        update(learner, make_batch("continuous", 6))
    else:
        with pytest.raises(ZeroDivisionError):
            update(learner, make_batch("continuous", 6))
    assert module.count == num_phases
    assert equal(learner.get_everything(), before)
    learner.bad = (None, None)
    update(learner, make_batch("continuous", 6))
    assert module.count == 2 * num_phases


class Broken(SingleProcess):
    """An exchange that fails once."""

    size, error = 2, None

    def all_reduce_(self, tensor):
        error, self.error = self.error, None
        if error is not None:
            raise error


@pytest.mark.parametrize("is_own", [True, False])
def test_buffers_of_a_step_that_is_repeated_after_a_loss_count_it_once(is_own):
    """As a module of a user's own keeps moving norms; with stages of their own and with those built in."""
    learner = make_learner({"name": "bc"}, learner_class=BadPhase if is_own else Learner, collective=Broken())
    module = count_losses(learner)
    learner.collective.error = PeersLostError("lost")
    with pytest.raises(PeersLostError):
        update(learner, make_batch("continuous", 6))
    assert module.count == 0
    update(learner, make_batch("continuous", 6))
    assert module.count == 1


class HalfApplied(Learner):
    """Fails between two optimizers of a phase, once."""

    fail_at = -1

    def apply_gradients(self, keys):
        super().apply_gradients(keys[:2])
        if self.step == self.fail_at:
            self.fail_at = -1
            raise ZeroDivisionError
        super().apply_gradients(keys[2:])


class FailingAdam(torch.optim.Adam):
    """An optimizer of a user's own."""

    fails = False

    def step(self, closure=None):
        if self.fails:
            raise ZeroDivisionError
        return super().step(closure)


class OwnOptimizers(Learner):
    """The last optimizer has a schedule and a class of a user's own."""

    fail_at = -1

    def configure_optimizers_for_module(self, module_id):
        for name in ("critic", "policy", "value"):
            named = [(n, p) for n, p in self.module[module_id].named_parameters() if n.startswith(f"{name}.")]
            is_last = name == "value"
            factory = FailingAdam if is_last and self.own == "optimizer" else torch.optim.Adam
            self.register_optimizer(module_id, name, factory, named, self.rate if is_last else 0.01)

    def rate(self, step):
        is_bad = step == self.fail_at
        if is_bad and self.own == "schedule":
            raise ZeroDivisionError
        for optimizer in self.optimizers.values() if hasattr(self, "optimizers") else ():
            optimizer.optimizer.fails = is_bad
        return 0.01


class OwnOptimizer(OwnOptimizers):
    own = "optimizer"


class OwnSchedule(OwnOptimizers):
    own = "schedule"


@pytest.mark.parametrize("learner_class", [HalfApplied, OwnOptimizer, OwnSchedule])
@pytest.mark.parametrize("step", [0, 2])
def test_a_phase_that_fails_between_its_optimizers_changes_nothing(learner_class, step):
    learner, other = (make_learner({"name": "iql"}, learner_class=learner_class) for _ in range(2))
    batches = [make_batch("continuous", 6, seed) for seed in range(step + 2)]
    update(learner, *batches[:step])
    before = [tensor.clone() for tensor in learner._shared_tensors()]
    learner.fail_at = step
    with pytest.raises(ZeroDivisionError):
        update(learner, batches[step])
    assert equal(learner._shared_tensors(), before)
    assert learner.step == step
    learner.fail_at = -1
    update(learner, *batches[step:])
    update(other, *batches)
    assert equal(learner._shared_tensors(), other._shared_tensors())
