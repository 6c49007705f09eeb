"""Pieces that losses share; pure functions, sums over rows."""

from collections.abc import Mapping, Sequence

import torch

from .batch import Batch


def row_mask(batch: Batch) -> torch.Tensor | None:
    """Return (B,) of 0 and 1: the rows that count; None where all do."""
    mask = batch.get("mask")
    return None if mask is None else mask.to(batch["rewards"].dtype if "rewards" in batch else torch.float32)


def num_valid_rows(batch: Batch) -> torch.Tensor | int:
    """Return the number of rows that count: the batch's weight in the global mean."""
    mask = batch.get("mask")
    return len(next(iter(batch.values()))) if mask is None else mask.sum()


def masked_sum(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Sum (B,) values over the rows that count; where() keeps a masked NaN out of the sum, not of its gradient."""
    return values.sum() if mask is None else torch.where(mask > 0, values, torch.zeros_like(values)).sum()


def expectile_loss(difference: torch.Tensor, expectile: float) -> torch.Tensor:
    """Return |τ − 1(u < 0)| · u², elementwise (Kostrikov et al. 2021, equation 5)."""
    # not where(…, 1 − τ, τ): two Python numbers make float32, whatever the difference is
    weight = (expectile - (difference < 0).to(difference.dtype)).abs()
    return weight * difference.square()


def dropout_masks(noise: Mapping[str, torch.Tensor], names: Sequence[str], rate: float) -> list[torch.Tensor] | None:
    """Turn uniform noise into inverted-dropout masks: 0, or 1 / (1 − rate); None for rate 0."""
    if rate == 0:
        return None
    return [(noise[name] >= rate).to(noise[name].dtype) / (1 - rate) for name in names]
