import numpy as np
import pytest
import torch

from dask_rl.learners.batch import (
    DEFAULT_MODULE_ID,
    as_multi_batch,
    check_batch,
    num_rows,
    split_batch,
)
from dask_rl.storage.errors import ConfigError


def test_multi_batches_are_sorted_and_a_plain_one_is_the_default_modules():
    plain = {"rewards": torch.zeros(2)}
    assert as_multi_batch(plain) == {DEFAULT_MODULE_ID: plain}
    assert list(as_multi_batch({"b": plain, "a": plain})) == ["a", "b"]
    assert as_multi_batch({}) == {}


@pytest.mark.parametrize("wrap", [dict, lambda batch: {"a": batch}])
def test_arrays_are_refused_with_the_way_to_convert_them(wrap):
    batch = {"observations": torch.zeros(2, 3), "actions": np.zeros(2)}
    with pytest.raises(ConfigError, match=r"batch: actions: got ndarray; .* torch\.as_tensor\.$"):
        as_multi_batch(wrap(batch))
    with pytest.raises(ConfigError, match="batch: actions: got ndarray"):
        as_multi_batch(wrap({"actions": batch["actions"]}))


def test_number_of_rows():
    assert num_rows({}) == 0
    assert num_rows({"x": torch.zeros(3, 2), "y": torch.zeros(3)}) == 3
    with pytest.raises(ConfigError, match=r"batch: got \{'x': 3, 'y': 4\}; allowed: tensors of one length"):
        num_rows({"x": torch.zeros(3), "y": torch.zeros(4)})


def test_split_is_contiguous_and_copies_nothing():
    batch = {"x": torch.arange(7)}
    parts = split_batch(batch, 3)
    assert [part["x"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5, 6]]
    assert parts[1]["x"].data_ptr() == batch["x"][2:].data_ptr()


def test_check_batch_names_what_is_wrong():
    batch = {"rewards": torch.zeros(3), "mask": torch.ones(3)}
    check_batch(batch, ("rewards",))
    with pytest.raises(ConfigError, match=r"batch: got no actions; allowed: .*; add the fields\."):
        check_batch(batch, ("actions", "rewards"))
    with pytest.raises(ConfigError, match=r"batch: mask: got shape \(3, 1\); allowed: \(B,\)"):
        check_batch({**batch, "mask": torch.ones(3, 1)}, ("rewards",))
    sequences = {"rewards": torch.zeros(3, 5), "sequence_mask": torch.ones(3, 5, dtype=torch.bool)}
    check_batch(sequences, ("rewards",))
    with pytest.raises(ConfigError, match=r"batch: rewards: got shape \(3,\); allowed: \(B, L\)"):
        check_batch({**sequences, "rewards": torch.zeros(3)}, ("rewards",))
