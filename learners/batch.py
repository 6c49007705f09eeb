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

Of sequences of L steps every field is (B, L, …), mask aside, beside sequence_mask (B, L) bool: which elements are real,
and timesteps (B, L). discounts (B,) is γ^m where a reward is the sum of m steps.

Of a Dict or Tuple space there is one tensor a part, named by the keys that lead to it, such as observations/pose/0 and
next_observations/pose/0. Images are uint8.
"""

Observations = torch.Tensor | Mapping[str, torch.Tensor]
"""Of a batch: the tensor or, of a Dict or Tuple space, those of its parts by path, such as pose/0."""

OBSERVATION_FIELDS = ("observations", "next_observations")
SEQUENCE_MASK = "sequence_mask"

_SCALARS = ("rewards", "terminations", "next_valid", "returns_to_go", "discounts")
"""One value a row, or one a step of a sequence."""

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


def observations_of(batch: Batch, name: str = "observations") -> Observations:
    """Return a batch's observations, or those of `next_observations`, as networks take them."""
    whole = batch.get(name)
    if whole is not None:
        return whole
    prefix = f"{name}/"
    return {path[len(prefix) :]: tensor for path, tensor in batch.items() if path.startswith(prefix)}


def has_field(batch: Mapping[str, Any], name: str) -> bool:
    """Tell whether a batch has a field, or parts of it."""
    return name in batch or any(path.startswith(f"{name}/") for path in batch)


def check_batch(batch: Batch, required_fields: Sequence[str]) -> None:
    """Raise ConfigError where a field is missing, or where (B, 1) would broadcast against (B,) in silence."""
    missing = [name for name in required_fields if not has_field(batch, name)]
    if missing:
        raise ConfigError(
            explain("batch", got=f"no {', '.join(missing)}", allowed=list(required_fields), fix="add the fields")
        )
    wanted = (2, "(B, L)") if SEQUENCE_MASK in batch else (1, "(B,)")
    for name, (num_axes, allowed) in {**dict.fromkeys(_SCALARS, wanted), "mask": (1, "(B,)")}.items():
        if name in batch and batch[name].dim() != num_axes:
            got = f"shape {tuple(batch[name].shape)}"
            raise ConfigError(explain(f"batch: {name}", got=got, allowed=allowed, fix="squeeze it"))


def split_batch(batch: Batch, num_parts: int) -> list[Batch]:
    """Split along the first axis into contiguous parts whose sizes differ by at most one (views)."""
    rows = num_rows(batch)
    edges = [rows * part // num_parts for part in range(num_parts + 1)]
    return [{name: tensor[start:stop] for name, tensor in batch.items()} for start, stop in itertools.pairwise(edges)]
