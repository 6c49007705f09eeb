"""Undo: one module as it was at the start of a step, for steps that may fail half-way."""

from collections.abc import Sequence

import torch

from .optimizers import SegmentOptimizer


class Undo:
    """Remembers tensors and optimizer state in buffers of its own, which are made once."""

    def __init__(self, tensors: Sequence[torch.Tensor], optimizers: Sequence[SegmentOptimizer]) -> None:
        """Watch over `tensors`, which stay where they are, and the state of `optimizers`."""
        self._tensors = list(tensors)
        self._optimizers = list(optimizers)
        self._copies: list[torch.Tensor] = []
        self._lengths: list[int] = []
        """Tensors of each optimizer's state; 0 before its first step."""

    def remember(self) -> None:
        """Copy the present values."""
        states = [optimizer.tensors() for optimizer in self._optimizers]
        lengths = [len(state) for state in states]
        tensors = [*self._tensors, *(tensor for state in states for tensor in state)]
        if lengths != self._lengths or not self._copies:
            self._copies = [torch.empty_like(tensor) for tensor in tensors]
            self._lengths = lengths
        with torch.no_grad():
            torch._foreach_copy_(self._copies, tensors)

    def put_back(self) -> None:
        """Return to the values of the last `remember`."""
        for optimizer, length in zip(self._optimizers, self._lengths, strict=True):
            if not length:
                optimizer.ensure_state(False)
        states = [optimizer.tensors() for optimizer in self._optimizers]
        with torch.no_grad():
            torch._foreach_copy_([*self._tensors, *(tensor for state in states for tensor in state)], self._copies)
