"""Noise as a pure function of (seed, step, data shard, module): neither other learners nor other modules change it."""

from collections.abc import Mapping, Sequence
from zlib import crc32

import numpy as np
import torch

from .batch import ModuleID


class NoiseBuffers:
    """Preallocated tensors of uniform [0, 1) noise, redrawn for every step."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        module_id: ModuleID,
    ) -> None:
        self._shapes = dict(shapes)
        self._seed = seed
        self._module = crc32(module_id.encode())
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator()
        self._buffers: dict[str, torch.Tensor] = {}

    def draw(self, step: int, shards: Sequence[int], rows_per_shard: int) -> dict[str, torch.Tensor]:
        """Return (len(shards) · rows_per_shard, *shape) tensors, overwritten by the next call."""
        if not self._shapes:
            return {}
        rows = len(shards) * rows_per_shard
        if rows != len(next(iter(self._buffers.values()), ())):
            self._buffers = {name: torch.empty(rows, *shape, dtype=self._dtype) for name, shape in self._shapes.items()}
        for position, shard in enumerate(shards):
            state = np.random.SeedSequence([self._seed, step, shard, self._module]).generate_state(2, np.uint32)
            self._generator.manual_seed(int(state[0]) << 32 | int(state[1]))
            part = slice(position * rows_per_shard, (position + 1) * rows_per_shard)
            for name in sorted(self._buffers):
                self._buffers[name][part].uniform_(generator=self._generator)
        return {name: buffer.to(self._device, non_blocking=True) for name, buffer in self._buffers.items()}
