"""Values of a saved state, which may be damaged or a stranger's: each is what it has to be, or a CheckpointError."""

import operator
from collections.abc import Mapping
from typing import Any

import torch

from dask_rl.storage.errors import CheckpointError, explain

MAX_COUNT = 2**62
"""Counters go from learner to learner in 64 bits, with room for what is added to them."""
_FIX = "load a checkpoint of this kind"


def as_mapping(subject: str, value: Any) -> Mapping[str, Any]:
    """Return a mapping by name."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise CheckpointError(explain(subject, got=_short(value), allowed="values by name", fix=_FIX))
    return value


def as_parts(subject: str, value: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    """Return a mapping that holds some of these parts, and nothing else."""
    given = as_mapping(subject, value)
    if not given or given.keys() - set(names):
        raise CheckpointError(explain(subject, got=sorted(given), allowed=f"some of {list(names)}", fix=_FIX))
    return given


def as_count(subject: str, value: Any) -> int:
    """Return a counter."""
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if not 0 <= count <= MAX_COUNT:
        raise CheckpointError(explain(subject, got=_short(value), allowed="an integer from 0 to 2**62", fix=_FIX))
    return count


def as_counts(subject: str, value: Any, names: tuple[str, ...]) -> dict[str, int]:
    """Return the counters of these names that are there."""
    given = as_mapping(subject, value)
    return {name: as_count(f"{subject}/{name}", given[name]) for name in names if name in given}


def as_tensor(subject: str, value: Any) -> torch.Tensor:
    """Return numbers as a tensor, without a copy where that goes."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise CheckpointError(explain(subject, got=_short(value), allowed="numbers", fix=_FIX)) from None


def _short(value: Any) -> str:
    if isinstance(value, int) and abs(value) > MAX_COUNT:  # Python refuses to write very large ones out
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
