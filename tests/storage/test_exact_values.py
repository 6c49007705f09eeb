"""Whole numbers that go into columns of floats stay what they are, or are refused with their place."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from dask_rl import import_arrays
from dask_rl.storage import DatasetWriter, InvalidDataError, OfflineDataset
from dask_rl.storage.building.step_columns import StepColumns

LARGE = 2**24 + 1  # the first that no float32 is
ENDS = np.array([False, False, True])


@pytest.fixture
def episode(make_episodes):
    return next(make_episodes(1)).part(0, 3)


def write(path, settings, *episodes):
    with DatasetWriter(path, **settings) as writer:
        writer.add_episodes(episodes)
        return writer.finish()


def test_rewards_that_need_64_bits_get_them(tmp_path, settings_of_pendulum, episode):
    given = replace(episode, rewards=np.full(3, LARGE))
    dataset = write(tmp_path / "d.zarr", settings_of_pendulum, given)
    assert dataset.read("rewards", 0, 3).tolist() == [LARGE] * 3
    small = write(tmp_path / "s.zarr", settings_of_pendulum, replace(episode, rewards=np.full(3, LARGE - 1)))
    assert small.arrays["rewards"].dtype == np.float32


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rewards", LARGE),
        ("infos/x", LARGE),
        ("infos/wide", 2**53 + 1),
        ("observations", LARGE),
        ("observations", 2**63 - 1),
    ],
)
def test_later_ones_that_do_not_fit_are_refused(tmp_path, settings_of_pendulum, episode, field, value):
    first = replace(episode, infos={"x": np.zeros(3, np.float32), "wide": np.zeros(3)})
    columns = {"infos/x": first.infos["x"], "infos/wide": first.infos["wide"], "rewards": first.rewards}
    columns["observations"] = first.observations
    columns[field] = np.zeros(columns[field].shape, np.int64)
    columns[field][1] = value
    infos = {"x": columns["infos/x"], "wide": columns["infos/wide"]}
    second = replace(first, rewards=columns["rewards"], observations=columns["observations"], infos=infos)
    with pytest.raises(InvalidDataError, match=rf"episode 1, step 1: {field}.*: got {value}; allowed: values that"):
        write(tmp_path / "d.zarr", settings_of_pendulum, first, second)
    assert list(tmp_path.iterdir()) == []


def test_columns_in_memory_are_refused_alike(tmp_path, settings_of_pendulum):
    columns = {
        "observations": np.full((4, 3), LARGE),
        "actions": np.zeros((3, 1), np.float32),
        "rewards": np.full(3, LARGE),
        "terminations": ENDS,
        "truncations": np.zeros(3, bool),
    }
    steps = StepColumns(columns, np.array([3]))
    with pytest.raises(InvalidDataError) as wanted:
        write(tmp_path / "s.zarr", settings_of_pendulum, steps.episode(0))
    with pytest.raises(InvalidDataError) as found, DatasetWriter(tmp_path / "c.zarr", **settings_of_pendulum) as writer:
        writer.add_steps(steps)
    assert str(found.value) == str(wanted.value)
    whole = StepColumns({**columns, "observations": np.zeros((4, 3), np.float32)}, np.array([3]))
    with DatasetWriter(tmp_path / "c.zarr", **settings_of_pendulum) as writer:
        writer.add_steps(whole)
    assert OfflineDataset.open(tmp_path / "c.zarr").read("rewards", 0, 3).tolist() == [LARGE] * 3


@pytest.mark.parametrize("declared", [True, False], ids=["at once", "one by one"])
def test_imported_rewards_are_exact_too(tmp_path, declared):
    given = {"observations": np.zeros((3, 1), np.float32), "actions": np.zeros((3, 1), np.float32)}
    if declared:
        given |= {"observation_space": spaces.Box(-1, 1, (1,)), "action_space": spaces.Box(-1, 1, (1,))}
    import_arrays(tmp_path / "d.zarr", **given, rewards=np.full(3, LARGE), terminations=ENDS)
    assert OfflineDataset.open(tmp_path / "d.zarr").read("rewards", 0, 3).tolist() == [LARGE] * 3
    if declared:
        given["observations"] = np.full((3, 1), LARGE)
        given["observation_space"] = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        with pytest.raises(InvalidDataError, match=f"step 0.*observations.*got .*{LARGE}"):
            import_arrays(tmp_path / "e.zarr", **given, rewards=np.zeros(3), terminations=ENDS)
