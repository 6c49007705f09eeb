"""Optimizers, schedules and stages of a user's own."""

import numpy as np
import numpy.testing as npt
import pytest
import torch
from learner_cases import make_batch, make_learner, update, weights

from dask_rl.learners.algorithm import Phase
from dask_rl.learners.learner import Learner
from dask_rl.learners.schedules import TorchSchedule
from dask_rl.storage.errors import ConfigError


def sum_of_parameters(learner, module_id, batch):
    """The loss of a row is the sum of all parameters."""
    return {"sum_loss": len(batch["rewards"]) * sum(p.sum() for p in learner.module[module_id].parameters())}


class OwnOptimizers(Learner):
    def configure_optimizers_for_module(self, module_id):
        named = list(self.module[module_id].named_parameters())
        self.register_optimizer(module_id, "first", torch.optim.SGD, named[:1], [(0, 1.0), (2, 0.0)], momentum=0.0)
        self.register_optimizer(module_id, "rest", torch.optim.SGD, named[1:], lambda step: 0.5)

    def compute_losses(self, module_id, batch, noise, phase):
        return sum_of_parameters(self, module_id, batch)


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
        return sum_of_parameters(self, module_id, batch)


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
        return sum_of_parameters(self, module_id, batch)

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
