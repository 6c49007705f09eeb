import math

import pytest
import torch
from torch.optim import lr_scheduler

from dask_rl.learners.schedules import Constant, Cosine, Piecewise, TorchSchedule, as_schedule
from dask_rl.storage.errors import ConfigError


def test_cosine_is_torchs_up_to_the_end_and_stays_zero_after_it():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    schedule = Cosine(0.3, 50)
    for step in range(51):
        assert schedule(step) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        scheduler.step()
    assert scheduler.get_last_lr()[0] > 0
    assert [schedule(step) for step in (50, 51, 75, 1000)] == [0, 0, 0, 0]
    assert schedule(25) == pytest.approx(0.15)
    assert schedule(10) == pytest.approx(0.15 * (1 + math.cos(math.pi / 5)))


def test_piecewise_interpolates_and_is_constant_outside():
    schedule = as_schedule([(0, 1.0), (10, 0.0), (20, 0.5)])
    assert [schedule(step) for step in (0, 5, 10, 15, 20, 99)] == [1.0, 0.5, 0.0, 0.25, 0.5, 0.5]


@pytest.mark.parametrize("points", [(), ((1, 1.0),), ((0, 1.0), (5, 1.0), (5, 2.0)), ((0, 1.0), (9, 1.0), (5, 2.0))])
def test_points_that_are_no_schedule_are_refused(points):
    with pytest.raises(ConfigError, match="steps that start at 0 and increase"):
        Piecewise(points)


def test_what_counts_as_a_schedule():
    assert as_schedule(0.1) == Constant(0.1)
    assert as_schedule(2)(7) == 2.0
    own = Cosine(1.0, 3)
    assert as_schedule(own) is own
    assert as_schedule(lambda step: step / 2)(3) == 1.5


# -- torch's schedulers ------------------------------------------------------------------------------------------

FACTORIES = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, gamma=0.5),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=9),
    "warm restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=20, cycle_momentum=False),
    "sequence": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        [4],
    ),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_torch_schedulers_give_the_rates_that_they_give_to_a_loop(name):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = FACTORIES[name](optimizer)
    expected = []
    for _ in range(15):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    schedule = TorchSchedule(FACTORIES[name], 0.3)
    assert [schedule(step) for step in range(15)] == expected
    assert [schedule(step) for step in (14, 3, 3, 0, 9, 12)] == [expected[step] for step in (14, 3, 3, 0, 9, 12)]
    assert as_schedule(schedule) is schedule


def test_a_scheduler_that_follows_a_loss_is_refused():
    with pytest.raises(ConfigError, match="got ReduceLROnPlateau; allowed: schedulers that depend on the step alone"):
        TorchSchedule(lr_scheduler.ReduceLROnPlateau, 0.1)
