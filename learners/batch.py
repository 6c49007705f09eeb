"""Batches: named tensors with a common first axis, per module."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dask_rl.storage.errors import ConfigError, explain

from .input_checks import check_names

ModuleID = str
DEFAULT_MODULE_ID: ModuleID = "default_module"

Batch = dict[str, torch.Tensor]
"""One module's rows. Every tensor is (B, …); the names are

observations (B, *obs), actions (B, *act), rewards (B,), terminations (B,) 0 or 1, next_observations (B, *obs),
next_valid (B,) bool: whether next_observations is real, returns_to_go (B,), mask (B,) 0 or 1: rows that count.
"""

OBSERVATION_FIELDS = ("observations", "next_observations")

_SCALARS = ("rewards", "terminations", "next_valid", "returns_to_go", "mask")
"""One value a row."""

_ALLOWED = "torch tensors by field, or such batches by module id"

MultiBatch = dict[ModuleID, Batch]
"""Batches by module id; always iterated in sorted order, so that all learners agree on it."""


def as_multi_batch(batch: Mapping[str, Any]) -> MultiBatch:
    """Wrap a plain Batch as that of the default module; copies no tensor, refuses what is none."""
    check_names("batch", batch, _ALLOWED)
    by_module = all(isinstance(value, Mapping) for value in batch.values())
    modules = {name: dict(batch[name]) for name in sorted(batch)} if by_module else {DEFAULT_MODULE_ID: dict(batch)}
    for fields in modules.values():
        for name, value in fields.items():
            if not isinstance(value, torch.Tensor):
                fix = "convert arrays with torch.as_tensor"
                raise ConfigError(explain(f"batch: {name}", got=type(value).__name__, allowed=_ALLOWED, fix=fix))
            if value.layout is not torch.strided or not value.dim():
                got = f"{value.layout}, shape {tuple(value.shape)}"
                raise ConfigError(
                    explain(f"batch: {name}", got=got, allowed="a dense tensor (B, …)", fix="give it one value a row")
                )
    return modules


def num_rows(batch: Batch) -> int:
    """Return the length of the common first axis; 0 for a batch without tensors."""
    lengths = {name: len(tensor) for name, tensor in batch.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigError(
            explain("batch", got=lengths, allowed="tensors of one length", fix="cut them to the same rows")
        )
    return next(iter(lengths.values()), 0)


def check_batch(batch: Batch, required_fields: Sequence[str]) -> None:
    """Raise ConfigError where a field is missing, or where (B, 1) would broadcast against (B,) in silence."""
    missing = [name for name in required_fields if name not in batch]
    if missing:
        raise ConfigError(
            explain("batch", got=f"no {', '.join(missing)}", allowed=list(required_fields), fix="add the fields")
        )
    for name in _SCALARS:
        if name in batch and batch[name].dim() != 1:
            raise ConfigError(
                explain(f"batch: {name}", got=f"shape {tuple(batch[name].shape)}", allowed="(B,)", fix="squeeze it")
            )


def split_batch(batch: Batch, num_parts: int) -> list[Batch]:
    """Split along the first axis into contiguous parts whose sizes differ by at most one (views)."""
    rows = num_rows(batch)
    edges = [rows * part // num_parts for part in range(num_parts + 1)]
    return [{name: tensor[start:stop] for name, tensor in batch.items()} for start, stop in itertools.pairwise(edges)]
