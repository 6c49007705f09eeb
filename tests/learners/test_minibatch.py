import math
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dask_rl.learners.minibatch import count_minibatches, cyclic_minibatches
from dask_rl.storage.errors import ConfigError


@pytest.mark.parametrize(
    ("rows", "epochs", "size", "count"),
    [([512], 1, 128, 4), ([96], 2, 16, 12), ([100], 3, 32, 10), ([32], 1, 128, 1), ([256, 64], 1, 32, 8)],
)
def test_counts(rows, epochs, size, count):
    assert count_minibatches(rows, epochs, size) == count


@pytest.mark.parametrize(("epochs", "size", "name"), [(0, None, "num_epochs"), (1, 0, "minibatch_size")])
def test_impossible_counts_are_refused(epochs, size, name):
    with pytest.raises(ConfigError, match=f"{name}: got 0; allowed: at least 1"):
        count_minibatches([7], epochs, size)


def test_whole_batches_once_an_epoch():
    assert count_minibatches([7, 9], 3, None) == 3
    batch = {"m": {"x": torch.arange(5)}}
    assert [b["m"]["x"].tolist() for b in cyclic_minibatches(batch, 2, None)] == [[0, 1, 2, 3, 4]] * 2


@given(
    rows=st.integers(1, 40),
    others=st.integers(1, 40),
    size=st.integers(1, 25),
    epochs=st.integers(1, 4),
    seed=st.none() | st.integers(0, 2**31),
)
def test_every_row_comes_round_equally_often(rows, others, size, epochs, seed):
    batch = {
        "b": {"x": torch.arange(rows), "y": 10 * torch.arange(rows)},
        "a": {"x": torch.arange(others)},
    }
    count = count_minibatches([rows, others], epochs, size)
    assert count == math.ceil(epochs * max(rows, others) / size)
    minibatches = list(cyclic_minibatches(batch, count, size, shuffle_seed=seed))
    assert len(minibatches) == count
    for module_id, total in (("a", others), ("b", rows)):
        seen = torch.cat([minibatch[module_id]["x"] for minibatch in minibatches])
        assert len(seen) == count * size
        for start in range(0, len(seen) - total + 1, total):
            assert sorted(seen[start : start + total].tolist()) == list(range(total))
        if seed is None:
            assert seen.tolist() == [i % total for i in range(count * size)]
    assert all(torch.equal(10 * minibatch["b"]["x"], minibatch["b"]["y"]) for minibatch in minibatches)


def test_reshuffled_at_each_wrap_and_reproducible():
    batch = {"m": {"x": torch.arange(50)}}
    orders = [[b["m"]["x"].tolist() for b in cyclic_minibatches(batch, 2, 50, shuffle_seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][0] != orders[0][1]


def test_sequences_stay_intact():
    batch = {"m": {"x": torch.arange(24).view(6, 4)}}
    for minibatch in cyclic_minibatches(batch, 3, 4, shuffle_seed=0):
        assert (minibatch["m"]["x"].diff(dim=1) == 1).all()


def test_an_empty_module_is_refused():
    with pytest.raises(ConfigError, match=r"batch of module 'a': got 0 rows"):
        next(cyclic_minibatches({"a": {"x": torch.zeros(0)}, "b": {"x": torch.zeros(2)}}, 1, 2))


def test_the_order_of_a_modules_rows_is_its_own():
    batch = {module_id: {"x": torch.arange(50)} for module_id in "abc"}
    (together,) = cyclic_minibatches(batch, 1, 50, shuffle_seed=3)
    (alone,) = cyclic_minibatches({"b": batch["b"]}, 1, 50, shuffle_seed=3)
    assert torch.equal(alone["b"]["x"], together["b"]["x"])
    assert not torch.equal(together["a"]["x"], together["b"]["x"])


@pytest.mark.parametrize("size", [None, 4])
def test_starting_later_gives_the_rest(size):
    batch = {"a": {"x": torch.arange(7)}, "b": {"x": torch.arange(10)}}
    whole = list(cyclic_minibatches(batch, 6, size, shuffle_seed=1))
    for start in (0, 2, 6):
        rest = list(cyclic_minibatches(batch, 6, size, shuffle_seed=1, start=start))
        assert [b["b"]["x"].tolist() for b in rest] == [b["b"]["x"].tolist() for b in whole[start:]]


def slow_stream(rows, size, shuffle_seed, tag):
    """Orders one after the other, cut into pieces."""
    pending, epoch = [], 0
    while True:
        while len(pending) < size:
            order = list(range(rows))
            if shuffle_seed is not None:
                order = np.random.default_rng([shuffle_seed, tag, epoch]).permutation(rows).tolist()
            pending, epoch = pending + order, epoch + 1
        yield pending[:size]
        pending = pending[size:]


@given(st.integers(1, 9), st.integers(1, 30), st.sampled_from([None, 0, 7]))
def test_pieces_of_an_endless_stream_of_orders(rows, size, shuffle_seed):
    batch = {"m": {"x": torch.arange(rows)}}
    expected = slow_stream(rows, size, shuffle_seed, crc32(b"m"))
    for minibatch in cyclic_minibatches(batch, 7, size, shuffle_seed=shuffle_seed):
        assert minibatch["m"]["x"].tolist() == next(expected)


@pytest.mark.parametrize("shuffle_seed", [None, 3])
def test_many_more_rows_than_there_are_take_time_in_proportion(shuffle_seed):
    batch, size = {"m": {"x": torch.arange(1000)}}, 1_000_000
    [minibatch] = cyclic_minibatches(batch, 1, size, shuffle_seed=shuffle_seed)  # quadratic, it took minutes
    assert torch.bincount(minibatch["m"]["x"]).tolist() == [1000] * 1000


def test_minibatches_that_fit_in_no_memory_are_refused():
    batch = {"m": {"x": torch.zeros(8, 3), "y": torch.zeros(8)}}
    match = r"minibatch_size: got 1000000000000, which takes 2\.4e\+04 GB a minibatch; allowed: up to \d+ rows of this"
    with pytest.raises(ConfigError, match=match):
        next(cyclic_minibatches(batch, 1, 10**12))
