"""Flat storage: parameters and gradients as views into contiguous, aligned buffers.

Then zeroing gradients is one fill, the exchange one all-reduce, an optimizer one fused call a segment, a target update
one interpolation, and the copy to a new learner one broadcast.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dask_rl.storage.errors import ConfigError, explain

from .batch import ModuleID

ALIGNMENT_BYTES = 64
SegmentKey = tuple[ModuleID, str]
"""(module id, optimizer name): what is stepped together."""


@dataclass(frozen=True)
class Slot:
    """The place of one tensor in a buffer."""

    name: str
    start: int
    shape: torch.Size

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.start + self.shape.numel()

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the tensor's view of a buffer."""
        return buffer[self.start : self.stop].view(self.shape)


@dataclass(frozen=True)
class Segment:
    """A contiguous range of a buffer; `start` and `stop` are aligned, the gaps between slots stay 0."""

    start: int
    stop: int
    slots: tuple[Slot, ...]


def lay_out(
    groups: Mapping[SegmentKey, Iterable[tuple[str, torch.Tensor]]], itemsize: int
) -> dict[SegmentKey, Segment]:
    """Give every tensor an aligned place, group after group."""
    unit = ALIGNMENT_BYTES // itemsize
    segments, position = {}, 0
    for key, tensors in groups.items():
        start, slots = position, []
        for name, tensor in tensors:
            slots.append(Slot(name, position, tensor.shape))
            position += -(-tensor.numel() // unit) * unit
        segments[key] = Segment(start, position, tuple(slots))
    return segments


class FlatParameters:
    """The trainable parameters of some modules and their gradients, in one buffer each.

    The gradient buffer has a tail with one weight a module, so that gradients and weights travel together.

    Raises:
        ConfigError: a parameter is claimed twice.
    """

    def __init__(
        self,
        groups: Mapping[SegmentKey, Sequence[tuple[str, nn.Parameter]]],
        module_ids: Sequence[ModuleID],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        _check_one_owner(groups)
        self.segments = lay_out(groups, dtype.itemsize)
        self.size = max((segment.stop for segment in self.segments.values()), default=0)
        self.data = torch.zeros(self.size, dtype=dtype, device=device)
        self.grad = torch.zeros(self.size + len(module_ids), dtype=dtype, device=device)
        self.weights = self.grad[self.size :]
        self._views: list[tuple[nn.Parameter, torch.Tensor]] = []
        for key, parameters in groups.items():
            for slot, (_, parameter) in zip(self.segments[key].slots, parameters, strict=True):
                _move(parameter, slot.view(self.data))
                parameter.grad = slot.view(self.grad)
                self._views.append((parameter, parameter.grad))

    def segment_data(self, key: SegmentKey) -> torch.Tensor:
        """Return the parameters of a segment, (n,)."""
        segment = self.segments[key]
        return self.data[segment.start : segment.stop]

    def segment_grad(self, key: SegmentKey) -> torch.Tensor:
        """Return the gradients of a segment, (n,)."""
        segment = self.segments[key]
        return self.grad[segment.start : segment.stop]

    def segment_parameter(self, key: SegmentKey) -> nn.Parameter:
        """Return one parameter that stands for the whole segment, for an element-wise optimizer."""
        parameter = nn.Parameter(self.segment_data(key))
        parameter.grad = self.segment_grad(key)
        return parameter

    def ranges(self, keys: Iterable[SegmentKey]) -> list[tuple[int, int]]:
        """Return the fewest contiguous ranges that cover the segments."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted((self.segments[key].start, self.segments[key].stop) for key in keys):
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((start, stop))
        return merged

    def reattach(self) -> None:
        """Put back every `.grad` that left the buffer (set to None, replaced), keeping its value."""
        for parameter, view in self._views:
            if parameter.grad is view:
                continue
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
            parameter.grad = view


class FlatTargets:
    """Target parameters in one buffer, beside the trainable ones that they follow.

    Raises:
        ConfigError: the target's tensors do not match the source's by name and shape.
    """

    def __init__(self, target: Sequence[tuple[str, nn.Parameter]], source: Sequence[tuple[str, nn.Parameter]]) -> None:
        shapes = [[(name, tuple(p.shape)) for name, p in side] for side in (target, source)]
        if shapes[0] != shapes[1] or not target:
            raise ConfigError(
                explain(
                    "target update",
                    got=shapes[0],
                    allowed=shapes[1],
                    fix="give target and source one structure",
                )
            )
        parameter = target[0][1]
        segment = lay_out({("", ""): target}, parameter.element_size())[("", "")]
        self.data = torch.zeros(segment.stop, dtype=parameter.dtype, device=parameter.device)
        for slot, (_, parameter) in zip(segment.slots, target, strict=True):
            _move(parameter, slot.view(self.data))
        self._pairs = [(t.data, s.data) for (_, t), (_, s) in zip(target, source, strict=True)]
        flat = _as_one(self._pairs, len(self.data))
        if flat is not None:
            self._pairs = [(self.data, flat)]

    def step(self, rate: float) -> None:
        """Move the targets towards their sources by `rate`; 1 copies."""
        for target, source in self._pairs:
            target.lerp_(source, rate)


def _as_one(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], length: int) -> torch.Tensor | None:
    """Return the sources as one view that lines up with the flat targets, where they lie so."""
    first_target, first_source = pairs[0]
    storage = first_source.untyped_storage()
    for target, source in pairs:
        offset = target.storage_offset() - first_target.storage_offset()
        aligned = source.storage_offset() - first_source.storage_offset() == offset
        if source.untyped_storage().data_ptr() != storage.data_ptr() or not aligned:
            return None
    stop = first_source.storage_offset() + length
    if stop * first_source.element_size() > storage.nbytes():
        return None
    return first_source.as_strided((length,), (1,), first_source.storage_offset())


def _move(parameter: nn.Parameter, view: torch.Tensor) -> None:
    view.copy_(parameter.detach())
    parameter.data = view


def _check_one_owner(groups: Mapping[SegmentKey, Sequence[tuple[str, nn.Parameter]]]) -> None:
    owners: dict[int, str] = {}
    for (module_id, optimizer), parameters in groups.items():
        for name, parameter in parameters:
            owner = f"optimizer {optimizer!r} of module {module_id!r}"
            if id(parameter) in owners:
                raise ConfigError(
                    explain(
                        f"parameter {name} of module {module_id!r}",
                        got=f"{owner} beside {owners[id(parameter)]}",
                        allowed="one optimizer a parameter",
                        fix="make a shared encoder a module of its own",
                    )
                )
            owners[id(parameter)] = owner
