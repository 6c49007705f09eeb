"""Gradients of one phase into flat storage: eagerly, or as one compiled graph."""

from collections.abc import Callable, Mapping, Sequence
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
        self._compiled: Any = torch.compile(self._whole, fullgraph=True) if compile_ else None
        self._parameters = {
            f"module.{slot.name}": slot.view(flat.data) for key in keys for slot in flat.segments[key].slots
        }

    def __call__(self, batch: Batch, noise: Mapping[str, torch.Tensor]) -> Losses:
        """Return the losses, detached; the segments' gradients are overwritten by those of their sum."""
        if self._compiled is not None:
            with torch.no_grad():
                losses: Losses = self._compiled(self._parameters, batch, dict(noise))
            return losses
        for key in self._keys:
            self._flat.segment_grad(key).zero_()
        losses = self._forward(batch, noise)
        total = torch.stack([loss.reshape(()) for loss in losses.values()]).sum()
        total.backward()
        return {name: loss.detach() for name, loss in losses.items()}

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

    def _whole(self, parameters: dict[str, torch.Tensor], batch: Batch, noise: dict[str, torch.Tensor]) -> Losses:
        gradients, losses = torch.func.grad(self._total, has_aux=True)(parameters, batch, noise)
        for key in self._keys:
            segment = self._flat.segments[key]
            parts = []
            for index, slot in enumerate(segment.slots):
                parts.append(gradients[f"module.{slot.name}"].reshape(-1))
                end = segment.slots[index + 1].start if index + 1 < len(segment.slots) else segment.stop
                parts.append(parts[-1].new_zeros(end - slot.stop))
            self._flat.segment_grad(key).copy_(torch.cat(parts))
        return losses
