"""Columns in memory: the dataset that their episodes give one by one, and the same refusals."""

import functools
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from supplies import SPACES, RandomSupply

from dask_rl.storage import DatasetWriter, InvalidDataError, OfflineDataset
from dask_rl.storage.building.step_columns import StepColumns

pytestmark = pytest.mark.data

LENGTHS = tuple(int(n) for n in np.random.default_rng(0).integers(1, 40, 30))


def columns_of(episodes, final_observations=True):
    fields = ("actions", "rewards", "terminations", "truncations")
    observations = [e.observations if final_observations else e.observations[:-1] for e in episodes]
    columns = {"observations": np.concatenate(observations)}
    columns |= {name: np.concatenate([getattr(e, name) for e in episodes]) for name in fields}
    columns["infos/behavior_logp"] = np.concatenate([e.infos["behavior_logp"] for e in episodes])
    return StepColumns(columns, np.array([len(e) for e in episodes]))


def episodes(lengths=LENGTHS, final_observations=True):
    """Without ids and seeds, as columns are."""
    kept = RandomSupply(lengths).kept()
    return [replace(e, has_final_observation=final_observations, id=-1, seed=None) for e in kept]


def write(path, steps=None, by_one=(), shard_rows=64, given=SPACES):
    with DatasetWriter(path, **given, shard_rows=shard_rows) as writer:
        if steps is not None:
            writer.add_steps(steps)
        writer.add_episodes(by_one)
        return writer.finish()


@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    shard_rows=st.sampled_from([8, 16, None]),
    chunk_bytes=st.sampled_from([16, 64, 1 << 20]),
    final_observations=st.booleans(),
    short_steps=st.sampled_from([0, 64]),
)
def test_the_bytes_are_those_of_the_stream(
    tmp_path_factory, lengths, shard_rows, chunk_bytes, final_observations, short_steps
):
    path = tmp_path_factory.mktemp("datasets")
    given = episodes(tuple(lengths), final_observations)
    with (
        mock.patch("dask_rl.storage.blocking.MAX_CHUNK_BYTES", chunk_bytes),
        mock.patch("dask_rl.storage.building.step_columns._SHORT_STEPS", short_steps),
    ):
        wanted = write(path / "stream.zarr", None, given, shard_rows)
        found = write(path / "columns.zarr", columns_of(given, final_observations), (), shard_rows)
    assert found.content_hash == wanted.content_hash
    found.verify(deep=True)


def test_types_are_cast_as_for_single_episodes(tmp_path):
    given = [replace(e, observations=e.observations.astype(np.float64), rewards=np.arange(len(e))) for e in episodes()]
    wanted = write(tmp_path / "stream.zarr", None, given)
    assert write(tmp_path / "columns.zarr", columns_of(given)).content_hash == wanted.content_hash
    assert wanted.arrays["rewards"].dtype == wanted.arrays["observations"].dtype == np.float32


def test_discrete_spaces_and_images(tmp_path):
    rng = np.random.default_rng(0)
    given = {"observation_space": spaces.Box(0, 255, (4, 4), np.uint8), "action_space": spaces.Discrete(3, start=1)}
    plain = [
        replace(
            e,
            observations=rng.integers(0, 256, (len(e) + 1, 4, 4)).astype(np.uint8),
            actions=rng.integers(1, 4, len(e)).astype(np.int32),
        )
        for e in episodes()
    ]
    wanted = write(tmp_path / "stream.zarr", None, plain, given=given)
    assert write(tmp_path / "columns.zarr", columns_of(plain), given=given).content_hash == wanted.content_hash


def spoiled(field, row, value):
    steps = columns_of(episodes())
    column = steps.columns[field].copy()
    column[row] = value
    return replace(steps, columns={**steps.columns, field: column})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("observations", np.nan),
        ("rewards", np.inf),
        ("actions", 2.5),
        ("actions", np.nan),
        ("infos/behavior_logp", -np.inf),
    ],
)
@pytest.mark.parametrize("row", [0, 300])
def test_bad_values_name_their_place_and_leave_nothing(tmp_path, field, value, row):
    steps = spoiled(field, row, value)
    by_one = [steps.episode(number) for number in range(steps.num_episodes)]
    with pytest.raises(InvalidDataError) as wanted:
        write(tmp_path / "stream.zarr", None, by_one)
    with pytest.raises(InvalidDataError) as found:
        write(tmp_path / "columns.zarr", steps)
    assert str(found.value) == str(wanted.value)
    assert not list(tmp_path.iterdir())


def test_what_is_finished_is_kept(tmp_path):
    steps, path = columns_of(episodes()), tmp_path / "data.zarr"
    crash = functools.partial(mock.patch, "dask_rl.storage.writer.write_metadata", side_effect=KeyboardInterrupt)
    with crash(), pytest.raises(KeyboardInterrupt):
        write(path, steps)
    kept = {p.name: p.stat().st_ino for p in (tmp_path / ".data.zarr.partial/store/data/rewards/c").iterdir()}
    (tmp_path / ".data.zarr.partial/store/data/rewards/c/1").write_bytes(b"x")
    found = write(path, steps)
    again = {p.name: p.stat().st_ino for p in (path / "data/rewards/c").iterdir()}
    assert {name for name in kept if kept[name] != again[name]} == {"1"}
    with crash(), pytest.raises(KeyboardInterrupt):
        write(tmp_path / "other.zarr", steps)
    other = spoiled("rewards", 3, 7.0)  # the same layout, other rows
    assert write(tmp_path / "other.zarr", other).content_hash != found.content_hash
    OfflineDataset.open(tmp_path / "other.zarr").verify(deep=True)


def test_columns_that_do_not_fit():
    steps = columns_of(episodes((3, 4)))
    for columns, message in (
        ({"rewards": np.zeros(6, np.float32)}, "rewards: got 6 rows; allowed: 7"),
        ({"observations": np.zeros((8, 3), np.float32)}, "observations: got 8 rows; allowed: 7 or 9"),
        ({"terminations": np.ones(7, bool)}, "an end flagged at step 0 of 3"),
        ({"truncations": np.zeros(7)}, "truncations: got float64"),
    ):
        with pytest.raises(InvalidDataError, match=message):
            replace(steps, columns={**steps.columns, **columns})
    with pytest.raises(InvalidDataError, match="an episode of no steps"):
        replace(steps, lengths=np.array([0, 7]))


def test_append_and_mixed(tmp_path):
    first, second = episodes((3, 4)), episodes((5, 6, 7))
    for name, steps in (("columns.zarr", columns_of(second)), ("stream.zarr", None)):
        write(tmp_path / name, None, first)
        with DatasetWriter(tmp_path / name, append=True) as writer:
            if steps is None:
                writer.add_episodes(second)
            else:
                writer.add_steps(steps)
    hashes = {OfflineDataset.open(tmp_path / name).content_hash for name in ("columns.zarr", "stream.zarr")}
    assert len(hashes) == 1
    mixed = DatasetWriter(tmp_path / "mixed.zarr", **SPACES)
    mixed.add_episodes(first)
    mixed.add_steps(columns_of(second))
    assert mixed.finish().num_episodes == 5


def test_bounds_of_each_element_and_rows_that_cannot_be_written_to(tmp_path):
    lengths = (70, 90, 80)
    space = spaces.Box(np.array([-2, 0], np.float32), np.array([0, 3], np.float32))
    rng = np.random.default_rng(0)
    plain = [
        replace(e, actions=rng.uniform([-2, 0], [0, 3], (len(e), 2)).astype(np.float32)) for e in episodes(lengths)
    ]
    given = SPACES | {"action_space": space}
    steps = columns_of(plain)
    for column in steps.columns.values():
        column.flags.writeable = False
    wanted = write(tmp_path / "stream.zarr", None, plain, shard_rows=32, given=given)
    assert write(tmp_path / "columns.zarr", steps, shard_rows=32, given=given).content_hash == wanted.content_hash
    actions = steps.columns["actions"].copy()
    actions[200, 0] = 0.5  # inside the bounds of the other element
    outside = replace(steps, columns={**steps.columns, "actions": actions})
    with pytest.raises(InvalidDataError, match=r"episode 2, step 40: actions\[0\]: got 0.5"):
        write(tmp_path / "bad.zarr", outside, shard_rows=32, given=given)
