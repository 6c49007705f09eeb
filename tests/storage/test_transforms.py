import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_rl.storage import (
    ConfigError,
    Normalize,
    ScaleReward,
    column_statistics,
    n_step_rewards,
    returns_to_go,
    transform_from_json,
)
from dask_rl.storage.transforms import FEW_EPISODES, SCAN_ROWS


def test_normalize_by_hand():
    transform = Normalize(mean=(1.0, -2.0), std=(0.5, 3.0), eps=0.0)
    rows = np.array([[1.0, 1.0], [2.0, -2.0]], np.float32)
    wanted = [[0.0, 1.0], [2.0, 0.0]]
    np.testing.assert_allclose(transform.apply(rows), wanted, rtol=1e-6)
    out = np.empty_like(rows)
    assert transform.apply(rows, out) is out
    np.testing.assert_allclose(out, wanted, rtol=1e-6)
    transform.apply(rows, rows)  # in place
    np.testing.assert_allclose(rows, wanted, rtol=1e-6)


def test_normalize_takes_images_and_float64():
    transform = Normalize(mean=(1.0,) * 4, std=(2.0,) * 4, eps=0.0)
    images = np.full((3, 2, 2), 5, np.uint8)
    np.testing.assert_array_equal(transform.apply(images), np.full((3, 2, 2), 2, np.float32))
    assert transform.apply(np.ones((3, 4))).dtype == np.float32


def test_normalized_data_has_mean_0_and_std_1(dataset):
    transform = Normalize.from_statistics(column_statistics(dataset, "observations"), eps=0.0)
    steps = dataset.read("observations", 0, dataset.num_rows)[dataset.step_mask(0, dataset.num_rows)]
    rows = transform.apply(steps).astype(np.float64)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(rows.std(axis=0), 1, rtol=1e-5)


def test_scale_reward():
    rewards = np.array([1.0, -3.0], np.float32)
    np.testing.assert_array_equal(ScaleReward(2.0, 1.0).apply(rewards), [3.0, -5.0])
    np.testing.assert_array_equal(rewards, [1.0, -3.0])
    ScaleReward(2.0, 1.0).apply(rewards, rewards)
    np.testing.assert_array_equal(rewards, [3.0, -5.0])


@pytest.mark.parametrize("transform", [Normalize((1.0, 0.1), (0.5, 3.0)), ScaleReward(0.1, -1.0)])
def test_json_round_trip(transform):
    assert transform_from_json(json.loads(json.dumps(transform.to_json()))) == transform
    with pytest.raises(ConfigError, match="transform: got 'x'; allowed: normalize, scale_reward"):
        transform_from_json({"name": "x"})
    with pytest.raises(ConfigError, match="normalize: std: got 1 numbers; allowed: 2"):
        Normalize((1.0, 2.0), (1.0,))


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=10),
    discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    seed=st.integers(0, 5),
)
def test_returns_to_go_equal_the_definition(lengths, discount, seed):
    ends = np.cumsum([length + 1 for length in lengths])
    starts = np.concatenate([[0], ends[:-1]])
    rewards = np.random.default_rng(seed).standard_normal(ends[-1])
    rewards[ends - 1] = 0
    wanted = np.zeros(len(rewards))
    for start, end in zip(starts, ends, strict=True):
        for row in range(start, end - 1):
            powers = discount ** np.arange(end - 1 - row)
            wanted[row] = np.sum(powers * rewards[row : end - 1])
    np.testing.assert_allclose(returns_to_go(rewards, starts, ends, discount), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_returns_to_go_of_long_episodes_are_the_recurrence_to_the_last_bit(dtype):
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(0, 40, 2 * FEW_EPISODES), [SCAN_ROWS + 1000, 500]])
    ends = np.cumsum(lengths + 1)
    rewards = rng.normal(size=ends[-1]).astype(dtype)
    wanted = np.zeros(len(rewards), dtype)
    for end, length in zip(ends.tolist(), lengths.tolist(), strict=True):
        total = 0.0
        for row in reversed(range(end - 1 - length, end - 1)):
            total = float(rewards[row]) + 0.99 * total
            wanted[row] = total
    np.testing.assert_array_equal(returns_to_go(rewards, ends - lengths - 1, ends, 0.99), wanted)
    assert returns_to_go(rewards, ends - lengths - 1, ends, 0.99, out=rewards) is rewards
    np.testing.assert_array_equal(rewards, wanted)


def test_returns_to_go_of_one_long_episode_take_one_pass():
    rewards = np.ones(1_000_001, np.float32)
    begin = time.process_time()
    result = returns_to_go(rewards, np.array([0]), np.array([len(rewards)]), 1.0)
    assert result[0] == 1_000_000
    assert time.process_time() - begin < 6  # a NumPy call a step takes several times as long


def test_returns_to_go_keep_the_type():
    rewards = np.array([1, 1, 0], np.float32)
    result = returns_to_go(rewards, np.array([0]), np.array([3]), 0.5)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, [1.5, 1.0, 0.0])
    assert returns_to_go(rewards.astype(np.int64), np.array([0]), np.array([3]), 1.0).dtype == np.float32


def test_n_step_rewards_by_hand():
    rewards = np.array([1.0, 10.0, 100.0, 7.0, 5.0], np.float32)
    steps_left = np.array([3, 2, 1, 0, 1])  # row 3 is a final one
    wanted = [1 + 5 + 25, 10 + 50, 100, 0, 5]
    np.testing.assert_array_equal(n_step_rewards(rewards, steps_left, 5, 0.5), wanted)
    np.testing.assert_array_equal(n_step_rewards(rewards, steps_left, 2, 0.5), [6, 60, 100, 0, 5])
    np.testing.assert_array_equal(n_step_rewards(rewards, steps_left, 1, 0.5), [1, 10, 100, 0, 5])
