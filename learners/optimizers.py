"""Optimizers over the segments of flat storage: built, stepped, clipped, saved by parameter name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from dask_rl.storage.errors import CheckpointError, explain

from .algorithm import OptimizerFactory
from .flat import FlatParameters, SegmentKey, Slot
from .schedules import Schedule
from .state_values import as_mapping, as_tensor

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""Have one fused kernel for the whole update."""
ELEMENTWISE = (*FUSED, torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam)
"""Treat every element alone, so that a segment may be one parameter; others get a parameter a tensor."""


@dataclass(frozen=True)
class Registration:
    """What `Learner.register_optimizer` was given."""

    parameters: Sequence[tuple[str, nn.Parameter]]
    factory: OptimizerFactory
    schedule: Schedule
    kwargs: Mapping[str, Any]


class SegmentOptimizer:
    """One torch optimizer over one segment of flat storage."""

    def __init__(self, flat: FlatParameters, key: SegmentKey, registration: Registration) -> None:
        self.key = key
        self.schedule = registration.schedule
        self._slots = flat.segments[key].slots
        self._start = flat.segments[key].start
        self._factory = factory = registration.factory
        self._kwargs = kwargs = dict(registration.kwargs)
        self._is_flat = factory in ELEMENTWISE
        self._parameters = [flat.segment_parameter(key)] if self._is_flat else [p for _, p in registration.parameters]
        if factory in FUSED:
            kwargs.setdefault("fused", True)
        self.optimizer = factory(self._parameters, lr=self.schedule(0), **kwargs)

    @property
    def is_flat(self) -> bool:
        """Whether it is one of torch's own that treat the whole segment as one parameter: no step fails half-way."""
        return self._is_flat

    def step(self, step: int) -> None:
        """Step at the schedule's learning rate for `step`."""
        self.set_rate(step)
        self.optimizer.step()

    def set_rate(self, step: int) -> None:
        """Ask the schedule, which may fail, for the learning rate of `step`."""
        rate = self.schedule(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """Return the state as {"key.parameter name": tensor}; scalars such as the step counter as {"key": tensor}."""
        out: dict[str, Any] = {}
        for parameter, slots in self._owned():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if value.dim() == 0:
                    out[key if self._is_flat else f"{key}.{slots[0].name}"] = value.detach().clone()
                    continue
                for slot in slots:
                    out[f"{key}.{slot.name}"] = self._part(value, slot).detach().clone()
        return out

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state saved by parameter name; one that does not fit changes nothing.

        Raises:
            CheckpointError: missing or other names or shapes, or no numbers.
        """
        self.take(self.prepare(state))

    def prepare(self, state: Mapping[str, Any]) -> dict[torch.Tensor, dict[str, Any]]:
        """Return what `take` wants of a state saved by parameter name; raises as `load_state_dict`."""
        subject = f"optimizer state of {'/'.join(self.key)}"
        values = {name: as_tensor(f"{subject}, {name}", value) for name, value in as_mapping(subject, state).items()}
        if not values:
            return {}
        self._check_complete(values)
        return {parameter: self._gather(values, parameter, slots) for parameter, slots in self._owned()}

    def take(self, prepared: Mapping[torch.Tensor, dict[str, Any]]) -> None:
        """Take over what `prepare` has returned."""
        self.optimizer.state.clear()
        self.optimizer.state.update(prepared)

    def _gather(
        self, values: Mapping[str, torch.Tensor], parameter: nn.Parameter, slots: Sequence[Slot]
    ) -> dict[str, Any]:
        gathered: dict[str, Any] = {}
        for full_name, value in values.items():
            key, _, name = full_name.partition(".")
            # a scalar of the whole segment has no parameter's name; that of a 0-dim parameter has one
            if value.dim() == 0 and name == ("" if self._is_flat else slots[0].name):
                gathered[key] = value.detach().clone().to(parameter.device)
                continue
            slot = next((slot for slot in slots if slot.name == name), None)
            if slot is not None:
                buffer = gathered.setdefault(key, torch.zeros_like(parameter.detach()))
                self._part(buffer, slot).copy_(value)
        return gathered

    def _check_complete(self, state: Mapping[str, torch.Tensor]) -> None:
        shapes: dict[str, dict[str, torch.Size]] = {}
        keys = set()
        for full_name, value in state.items():
            key, _, name = full_name.partition(".")
            keys.add(key)
            if name or value.dim():  # else a scalar of the whole segment
                shapes.setdefault(key, {})[name] = value.shape
        known = self._known_keys()
        if known and keys != known:
            subject, fix = f"optimizer state of {'/'.join(self.key)}", "load a checkpoint of the same optimizer"
            raise CheckpointError(explain(subject, got=sorted(keys), allowed=sorted(known), fix=fix))
        wanted = {slot.name: slot.shape for slot in self._slots}
        for key, got in shapes.items():
            scalars = not self._is_flat and not any(got.values())  # the step counters, one a parameter
            if got.keys() != wanted.keys() or (got != wanted and not scalars):
                raise CheckpointError(
                    explain(
                        f"optimizer state {key} of {'/'.join(self.key)}",
                        got={name: tuple(shape) for name, shape in got.items()},
                        allowed={name: tuple(shape) for name, shape in wanted.items()},
                        fix="load a checkpoint of the same networks",
                    )
                )

    def _known_keys(self) -> set[str]:
        """Return what the optimizer keeps of a parameter; nothing where it has made no step and is a user's own."""
        if not self._is_flat:
            return {key for state in self.optimizer.state.values() for key in state}
        probe = nn.Parameter(torch.zeros_like(self._parameters[0].detach()[:1]))
        probe.grad = torch.zeros_like(probe)
        optimizer = self._factory([probe], lr=0.0, **self._kwargs)
        optimizer.step()
        return set(optimizer.state[probe])

    def ensure_state(self, present: bool) -> None:
        """Have state tensors, zero where there were none, or have none: as the learner whose state is to come."""
        if not present:
            self.optimizer.state.clear()
        elif not self.tensors():
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.zero_()
            for group in self.optimizer.param_groups:
                group["lr"] = 0.0  # a step that moves nothing makes them; `step` sets the rate anew
            self.optimizer.step()

    def tensors(self) -> list[torch.Tensor]:
        """Return the state's tensors in a fixed order, to be copied to another learner."""
        out = []
        for parameter, _ in self._owned():
            state = self.optimizer.state.get(parameter, {})
            out += [state[key] for key in sorted(state)]
        return out

    def _owned(self) -> list[tuple[nn.Parameter, Sequence[Slot]]]:
        if self._is_flat:
            return [(self._parameters[0], self._slots)]
        return [(p, [slot]) for p, slot in zip(self._parameters, self._slots, strict=True)]

    def _part(self, value: torch.Tensor, slot: Slot) -> torch.Tensor:
        if not self._is_flat:
            return value
        return value[slot.start - self._start : slot.stop - self._start].view(slot.shape)


def clip_gradients(
    flat: FlatParameters, key: SegmentKey, limit: float, by: Literal["value", "norm", "global_norm"]
) -> None:
    """Bound the gradients of a segment in place: each entry, each tensor's norm, or the segment's norm.

    As torch's clip_grad_norm_: scaled by min(1, limit / (norm + 1e-6)).
    """
    if by == "value":
        flat.segment_grad(key).clamp_(-limit, limit)
    elif by == "global_norm":
        _scale_to(flat.segment_grad(key), limit)
    else:
        for slot in flat.segments[key].slots:
            _scale_to(slot.view(flat.grad), limit)


def _scale_to(gradient: torch.Tensor, limit: float) -> None:
    norm = torch.linalg.vector_norm(gradient)
    gradient.mul_((limit / (norm + 1e-6)).clamp(max=1.0))


def gradient_norms(flat: FlatParameters, keys: Iterable[SegmentKey]) -> torch.Tensor:
    """Return the norm of each segment's gradient, (len(keys),)."""
    return torch.stack([torch.linalg.vector_norm(flat.segment_grad(key)) for key in keys])
