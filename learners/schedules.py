"""Learning rates as pure functions of the step: nothing to save, nothing to restore wrongly."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from dask_rl.storage.errors import ConfigError, explain


class Schedule(Protocol):
    """A value for each gradient step, counted from 0 over the whole run."""

    def __call__(self, step: int) -> float:
        """Return the value at `step`."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same value at every step."""

    value: float

    def __call__(self, step: int) -> float:
        """Return the value."""
        return self.value


@dataclass(frozen=True)
class Piecewise:
    """Linear between (step, value) points, constant outside them."""

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        """Check that the steps start at 0 and increase."""
        steps = [step for step, _ in self.points]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)):
            raise ConfigError(
                explain("schedule", got=self.points, allowed="steps that start at 0 and increase", fix="sort them")
            )

    def __call__(self, step: int) -> float:
        """Return the interpolated value."""
        for (start, low), (stop, high) in zip(self.points[:-1], self.points[1:], strict=True):
            if start <= step < stop:
                return low + (high - low) * (step - start) / (stop - start)
        return self.points[-1][1]


@dataclass(frozen=True)
class Cosine:
    """From `value` to 0 along half a cosine over `num_steps`; 0 afterwards, where torch's would rise again."""

    value: float
    num_steps: int

    def __call__(self, step: int) -> float:
        """Return value/2 · (1 + cos(π · step / num_steps))."""
        return self.value * 0.5 * (1 + math.cos(math.pi * min(step / self.num_steps, 1.0)))


class TorchSchedule:
    """The learning rates of one of torch's schedulers, as a function of the step.

    The scheduler runs beside the training, on an optimizer of its own: an earlier step starts it anew, a later one
    moves it forward, so that there is nothing to save.
    """

    def __init__(self, factory: Callable[[torch.optim.Optimizer], Any], learning_rate: float) -> None:
        """Wrap the scheduler that `factory(optimizer)` gives for an optimizer with this initial `learning_rate`.

        Raises:
            ConfigError: it follows a loss rather than the step.
        """
        self._factory = factory
        self._learning_rate = learning_rate
        self._start()
        if isinstance(self._scheduler, ReduceLROnPlateau):
            raise ConfigError(
                explain(
                    "learning rate schedule",
                    got="ReduceLROnPlateau",
                    allowed="schedulers that depend on the step alone",
                    fix="use another of torch.optim.lr_scheduler",
                )
            )

    def _start(self) -> None:
        self._optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=self._learning_rate)
        self._scheduler = self._factory(self._optimizer)
        self._step = 0

    def __call__(self, step: int) -> float:
        """Return the rate after `step` steps of the scheduler."""
        if step < self._step:
            self._start()
        while self._step < step:
            self._optimizer.step()  # without a gradient it does nothing; torch warns where it is missing
            self._scheduler.step()
            self._step += 1
        return float(self._optimizer.param_groups[0]["lr"])


def as_schedule(value: float | Sequence[tuple[int, float]] | Schedule) -> Schedule:
    """Turn a number or a list of (step, value) points into a Schedule."""
    if callable(value):
        return value
    if isinstance(value, Sequence):
        return Piecewise(tuple((int(step), float(level)) for step, level in value))
    return Constant(float(value))
