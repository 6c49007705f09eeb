import math

import numpy.testing as npt
import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError, jaxtyped

from dask_rl.learners.losses import dropout_masks, expectile_loss, masked_sum, num_valid_rows, row_mask

Rows, Scalar = Float[torch.Tensor, "B"], Float[torch.Tensor, ""]


@jaxtyped(typechecker=beartype)
def checked_masked_sum(values: Rows, mask: Rows | None) -> Scalar:
    return masked_sum(values, mask)


@jaxtyped(typechecker=beartype)
def checked_expectile(difference: Rows, expectile: float) -> Rows:
    return expectile_loss(difference, expectile)


def test_masked_sum_keeps_what_is_not_a_number_out():
    values = torch.tensor([1.0, math.nan, 4.0])
    assert checked_masked_sum(values, torch.tensor([1.0, 0.0, 1.0])) == 5
    assert torch.isnan(checked_masked_sum(values, torch.ones(3)))
    assert checked_masked_sum(torch.tensor([1.0, 2.0]), None) == 3
    with pytest.raises(TypeCheckError):
        checked_masked_sum(torch.ones(3, 1), torch.ones(3))


def test_expectile_half_is_half_the_square_and_the_dtype_stays():
    u = torch.tensor([-3.0, -1.0, 2.0])
    npt.assert_allclose(checked_expectile(u, 0.5).numpy(), [4.5, 0.5, 2.0])
    npt.assert_allclose(checked_expectile(u, 0.75).numpy(), [2.25, 0.25, 3.0])
    for dtype in (torch.float32, torch.float64):
        assert checked_expectile(u.to(dtype), 0.7).dtype == dtype
    exact = checked_expectile(torch.tensor([1.0], dtype=torch.float64), 0.7)
    assert exact.item() == 0.7  # a weight in float32 would be 0.699999988


def test_expectile_minimiser_is_the_expectile():
    data = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    grid = torch.linspace(0, 5, 5001, dtype=torch.float64)
    best = grid[torch.stack([expectile_loss(data - m, 0.8).sum() for m in grid]).argmin()]
    # 0.8 (5 − m) = 0.2 m + 0.2 (m − 1) where m lies between 1 and 5
    assert best.item() == pytest.approx(4.2 / 1.2, abs=1e-3)


def test_masks_and_weights():
    batch = {"rewards": torch.zeros(3, dtype=torch.float64), "mask": torch.tensor([True, False, True])}
    assert num_valid_rows(batch) == 2
    mask = row_mask(batch)
    assert mask is not None
    assert mask.dtype == torch.float64
    assert row_mask({"rewards": torch.zeros(3)}) is None
    assert num_valid_rows({"rewards": torch.zeros(3)}) == 3


def test_dropout_masks():
    noise = {"a": torch.tensor([[0.0, 0.25, 0.249, 0.9]])}
    masks = dropout_masks(noise, ["a"], 0.25)
    assert masks is not None
    npt.assert_allclose(masks[0].numpy(), [[0, 4 / 3, 0, 4 / 3]], rtol=1e-6)
    assert dropout_masks({}, ["a"], 0.0) is None
