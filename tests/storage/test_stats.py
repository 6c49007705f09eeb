import json

import dask
import numpy as np
import pytest

from dask_rl.storage import FieldStatistics, column_statistics, stats


@pytest.fixture
def wide(dataset, monkeypatch):
    """Many blocks, so that the combination is tested and not one numpy call."""
    monkeypatch.setattr("dask_rl.storage.blocking.BLOCK_BYTES", 64)
    return dataset


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "terminations"])
def test_equal_to_numpy_over_the_steps(wide, field):
    steps = wide.read(field, 0, wide.num_rows)[wide.step_mask(0, wide.num_rows)].astype(np.float64)
    statistics = column_statistics(wide, field)
    assert statistics.count == wide.num_steps == len(steps)
    np.testing.assert_allclose(statistics.mean, steps.mean(axis=0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(statistics.std, steps.std(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(statistics.min, steps.min(axis=0))
    np.testing.assert_array_equal(statistics.max, steps.max(axis=0))


def test_the_same_bits_with_every_scheduler(wide):
    results = []
    for scheduler in ("synchronous", "threads", "threads"):
        with dask.config.set(scheduler=scheduler):
            results.append(json.dumps(column_statistics(wide, "observations").to_json()))
    assert len(set(results)) == 1


def test_json_keeps_every_bit(dataset):
    statistics = column_statistics(dataset, "observations")
    again = FieldStatistics.from_json(json.loads(json.dumps(statistics.to_json())))
    for name in ("mean", "std", "min", "max", "count"):
        np.testing.assert_array_equal(getattr(again, name), getattr(statistics, name))


def test_statistics_of_a_wide_block_work_in_pieces(monkeypatch):
    rows = np.random.default_rng(0).integers(0, 255, (500, 7, 3)).astype(np.uint8)
    whole = stats.moments_of(rows)
    sizes = []
    pieces = stats._piece_moments
    monkeypatch.setattr(stats, "_piece_moments", lambda piece: (sizes.append(len(piece)), pieces(piece))[1])
    monkeypatch.setattr(stats, "_PIECE_BYTES", 21 * 8 * 64)
    cut = stats.moments_of(rows)
    assert sizes == [64] * 7 + [52]
    assert cut.count == whole.count
    for name in ("mean", "squares", "min", "max"):
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), rtol=1e-12)
