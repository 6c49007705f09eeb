"""Gradients of one phase into flat storage: eagerly, or as one compiled graph."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from .batch import Batch
from .flat import FlatParameters, SegmentKey

Losses = dict[str, torch.Tensor]
ComputeLosses = Callable[[Batch, Mapping[str, torch.Tensor]], Losses]


class _LossModule(nn.Module):
    """Gives a loss function the form that torch.func.functional_call wants."""

    def __init__(self, module: nn.Module, compute_losses: ComputeLosses) -> None:
        super().__init__()
        self.module = module
        self._compute_losses = compute_losses

    def forward(self, batch: Batch, noise: Mapping[str, torch.Tensor]) -> Losses:
        return self._compute_losses(batch, noise)


class PhaseGradients:
    """Computes one module's losses of one phase and puts their gradients into the phase's segments."""

    def __init__(
        self,
        module: nn.Module,
        flat: FlatParameters,
        keys: Sequence[SegmentKey],
        compute_losses: ComputeLosses,
        *,
        compile_: bool,
        bf16: bool,
    ) -> None:
        self._losses = _LossModule(module, compute_losses)
        self._flat = flat
        self._keys = list(keys)
        self._device_type = flat.data.device.type
        self._bf16 = bf16
        self._compiled: Any = _compile(self._whole) if compile_ else None
        self._parameters = {
            f"module.{slot.name}": slot.view(flat.data) for key in keys for slot in flat.segments[key].slots
        }
        self._views = [slot.view(flat.grad) for key in keys for slot in flat.segments[key].slots]

    def __call__(self, batch: Batch, noise: Mapping[str, torch.Tensor]) -> Losses:
        """Return the losses, detached; the segments' gradients are overwritten by those of their sum."""
        with repeatable(self._device_type):
            return self._run_eager(batch, noise) if self._compiled is None else self._run_compiled(batch, noise)

    def _run_eager(self, batch: Batch, noise: Mapping[str, torch.Tensor]) -> Losses:
        for key in self._keys:
            self._flat.segment_grad(key).zero_()
        losses = self._forward(batch, noise)
        total = torch.stack([loss.reshape(()) for loss in losses.values()]).sum()
        total.backward()
        return {name: loss.detach() for name, loss in losses.items()}

    def _run_compiled(self, batch: Batch, noise: Mapping[str, torch.Tensor]) -> Losses:
        losses: Losses
        with torch.no_grad():
            gradients, losses = self._compiled(self._parameters, batch, dict(noise))
            # Outside the graph: inside, the copy became one slow kernel over a concatenation.
            torch._foreach_copy_(self._views, gradients)
        return losses

    def _forward(self, batch: Batch, noise: Mapping[str, torch.Tensor]) -> Losses:
        with torch.autocast(self._device_type, torch.bfloat16, enabled=self._bf16):
            losses: Losses = self._losses(batch, noise)
        return losses

    def _total(
        self, parameters: dict[str, torch.Tensor], batch: Batch, noise: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, Losses]:
        with torch.autocast(self._device_type, torch.bfloat16, enabled=self._bf16):
            losses: Losses = torch.func.functional_call(self._losses, parameters, (batch, noise))
        return sum(losses.values(), start=torch.zeros((), device=self._flat.data.device)), losses

    def _whole(
        self, parameters: dict[str, torch.Tensor], batch: Batch, noise: dict[str, torch.Tensor]
    ) -> tuple[list[torch.Tensor], Losses]:
        gradients, losses = torch.func.grad(self._total, has_aux=True)(parameters, batch, noise)
        return [gradients[name] for name in self._parameters], losses


def _compile(function: Callable[..., Any]) -> Any:
    """Compile without guards on the modules' attributes, whose checks cost as much as the optimizer's kernel.

    They cannot change under a PhaseGradients: a learner whose modules or parameters change builds new ones.
    """
    options: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
    return torch.compile(function, fullgraph=True, options=options)


def repeatable(device_type: str) -> AbstractContextManager[object]:
    """Return what lets convolutions on a GPU give the same bits each time, as everything else does."""
    if device_type != "cuda":
        return nullcontext()
    cudnn = torch.backends.cudnn
    return cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=cudnn.allow_tf32)
