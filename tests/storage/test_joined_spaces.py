"""Spaces of several datasets together: wider bounds where only these differ."""

import numpy as np
import pytest
from gymnasium import spaces

from dask_rl.storage import DatasetWriter, Episode, OfflineDataset, spaces_equal
from dask_rl.storage.transforming import transform_datasets
from dask_rl.storage.transforming.joined_spaces import join_spaces

pytestmark = pytest.mark.data


def box(low, high, dtype=np.float32):
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([box([0, -1], [1, 2]), box([-3, 0], [0.5, 9])], box([-3, -1], [1, 9])),
        ([spaces.Discrete(2), spaces.Discrete(5), spaces.Discrete(3)], spaces.Discrete(5)),
        (
            [spaces.Dict(a=box([0], [1]), b=spaces.Discrete(2)), spaces.Dict(a=box([-1], [0]), b=spaces.Discrete(2))],
            spaces.Dict(a=box([-1], [1]), b=spaces.Discrete(2)),
        ),
        ([spaces.Tuple([box([0], [1])]), spaces.Tuple([box([0], [2])])], spaces.Tuple([box([0], [2])])),
        ([box([0], [1]), box([0, 0], [1, 1])], None),
        ([box([0], [1]), box([0], [1], np.float64)], None),
        ([spaces.Discrete(2), spaces.Discrete(2, start=1)], None),
        ([spaces.Dict(a=spaces.Discrete(2)), spaces.Dict(b=spaces.Discrete(2))], None),
        ([spaces.MultiBinary(2), spaces.MultiBinary(3)], None),
    ],
)
def test_joined_spaces(given, expected):
    for order in (given, given[::-1]):
        joined = join_spaces(order)
        assert joined is None if expected is None else spaces_equal(joined, expected)


def write(path, low, high, actions):
    length = len(actions)
    end = np.arange(length) == length - 1
    with DatasetWriter(
        path, observation_space=box([low], [high]), action_space=spaces.Discrete(actions[-1] + 1)
    ) as writer:
        observations = np.linspace(low, high, length + 1, dtype=np.float32)[:, None]
        zeros = np.zeros(length, bool)
        writer.add_episode(Episode(observations, np.array(actions), np.ones(length, np.float32), end, zeros))
    return path


def test_datasets_that_differ_in_bounds_are_merged_and_it_is_said(tmp_path):
    sources = [write(tmp_path / "a.zarr", -1, 2, [0, 1]), write(tmp_path / "b.zarr", 0, 5, [0, 1, 2])]
    summary = transform_datasets(sources, tmp_path / "m.zarr")
    with OfflineDataset.open(tmp_path / "m.zarr") as merged:
        assert spaces_equal(merged.observation_space, box([-1], [5]))
        assert spaces_equal(merged.action_space, spaces.Discrete(3))
        assert [len(episode) for episode in merged.episodes()] == [2, 3]
    assert [note for note in summary.notes if "bounds" in note] == [
        f"the sources differ in the bounds of their {name}: the dataset's has the wider ones"
        for name in ("observation_space", "action_space")
    ]
