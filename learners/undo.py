"""Undo: one module as it was at the start of a step, for steps that may fail half-way."""

from collections.abc import Sequence

import torch
from torch import nn

from .optimizers import SegmentOptimizer


class Undo:
    """Remembers tensors, buffers and optimizer state in memory of its own, which is made once."""

    def __init__(
        self,
        module: nn.Module,
        tensors: Sequence[torch.Tensor] = (),
        optimizers: Sequence[SegmentOptimizer] = (),
    ) -> None:
        """Watch over a part of a module.

        Args:
            module: its buffers are watched, but those of submodules that say `has_constant_buffers`.
            tensors: further ones, which stay where they are.
            optimizers: their state is watched.
        """
        self._tensors = list(tensors)
        self._optimizers = list(optimizers)
        self._places = [
            (part._buffers, name)
            for part in module.modules()
            if not getattr(part, "has_constant_buffers", False)
            for name in part._buffers
        ]
        self._buffers: list[torch.Tensor | None] = []
        """Those of the last `remember`: a module may put others in their places."""
        self._copies: list[torch.Tensor] = []
        self._lengths: list[int] = []
        """Tensors of each optimizer's state; 0 before its first step."""

    def remember(self) -> None:
        """Copy the present values."""
        self._buffers = [buffers[name] for buffers, name in self._places]
        states = [optimizer.tensors() for optimizer in self._optimizers]
        self._lengths = [len(state) for state in states]
        tensors = self._watched(states)
        if [_form(tensor) for tensor in tensors] != [_form(copy) for copy in self._copies]:
            self._copies = [torch.empty_like(tensor) for tensor in tensors]
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(self._copies, tensors)

    def put_back(self) -> None:
        """Return to the values of the last `remember`."""
        for (buffers, name), tensor in zip(self._places, self._buffers, strict=True):
            buffers[name] = tensor
        for optimizer, length in zip(self._optimizers, self._lengths, strict=True):
            if not length:
                optimizer.ensure_state(False)
        tensors = self._watched([optimizer.tensors() for optimizer in self._optimizers])
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(tensors, self._copies)

    def _watched(self, states: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        present = [tensor for tensor in self._buffers if tensor is not None]
        return [*self._tensors, *present, *(tensor for state in states for tensor in state)]


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
