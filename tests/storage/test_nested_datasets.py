"""Datasets of Dict and Tuple spaces, and of images: written, read back, checked by part."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from gymnasium import spaces

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import CorruptDataError, InvalidDataError
from dask_rl.storage.nested import flatten, unflatten
from dask_rl.storage.stats import column_statistics
from dask_rl.storage.validation import check_space
from dask_rl.storage.writer import DatasetWriter

OBSERVATIONS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "pose": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3, start=1))),
        "c": spaces.MultiBinary(2),  # the name of a chunk directory
    }
)
ACTIONS = spaces.Dict({"arm": spaces.Box(-1, 1, (2,), np.float32), "gripper": spaces.Discrete(2)})
LEAVES = ["observations/c", "observations/camera", "observations/pose/0", "observations/pose/1"]


def nested_episode(length, seed=0, *, has_final=True, **changes):
    rng = np.random.default_rng(seed)
    rows = length + 1
    ends = np.arange(length) == length - 1
    columns = {
        "observations": {
            "camera": rng.integers(0, 256, (rows, 4, 4, 3), np.uint8),
            "pose": {"0": rng.uniform(-1, 1, (rows, 2)).astype(np.float32), "1": rng.integers(1, 4, rows)},
            "c": rng.integers(0, 2, (rows, 2), np.int8),
        },
        "actions": {
            "arm": rng.uniform(-1, 1, (length, 2)).astype(np.float32),
            "gripper": rng.integers(0, 2, length),
        },
        "rewards": rng.normal(size=length).astype(np.float32),
        "terminations": ends,
        "truncations": np.zeros(length, bool),
    }
    return Episode(**{**columns, **changes}, has_final_observation=has_final, id=seed)


def write(path, episodes, **settings):
    settings = {"observation_space": OBSERVATIONS, "action_space": ACTIONS, "shard_rows": 16, **settings}
    with DatasetWriter(path, **settings) as writer:
        writer.add_episodes(episodes)
    return OfflineDataset.open(path)


@pytest.fixture(scope="module")
def episodes():
    return [nested_episode(length, seed) for seed, length in enumerate([5, 30, 1, 12])]


@pytest.fixture(scope="module")
def written(tmp_path_factory, episodes):
    path = tmp_path_factory.mktemp("nested") / "nested.zarr"
    write(path, episodes).close()
    return path


@pytest.fixture
def dataset(tmp_path, written):
    """A copy of its own, that may be damaged."""
    with OfflineDataset.open(shutil.copytree(written, tmp_path / "nested.zarr")) as dataset:
        yield dataset


def test_what_was_written_is_read_back_by_part(dataset, episodes):
    assert dataset.observation_space == OBSERVATIONS
    assert dataset.action_space == ACTIONS
    assert sorted(path for path in dataset.arrays if path.startswith("observations")) == LEAVES
    assert dataset.arrays["observations/camera"].dtype == np.uint8
    for wanted, got in zip(episodes, dataset.episodes(), strict=True):
        assert got.observations["pose"].keys() == {"0", "1"}
        columns = got.columns()
        assert columns.keys() == wanted.columns().keys()
        for path, column in wanted.columns().items():
            np.testing.assert_array_equal(columns[path], column, err_msg=path)
    assert dataset.verify(deep=True).num_rows == 52
    assert dataset.describe()["observation_space"].startswith("Dict(")


def test_each_part_is_a_plain_array_for_others(dataset, episodes):
    whole = np.concatenate([episode.observations["camera"] for episode in episodes])
    np.testing.assert_array_equal(dataset.to_dask("observations/camera").compute(), whole)
    group = zarr.open_group(dataset.path, mode="r")["data/observations/pose"]
    np.testing.assert_array_equal(group["1"][:], np.concatenate([e.observations["pose"]["1"] for e in episodes]))
    steps = np.concatenate([episode.observations["pose"]["0"][:-1] for episode in episodes])
    np.testing.assert_allclose(column_statistics(dataset, "observations/pose/0").mean, steps.mean(0), rtol=1e-6)


def test_a_missing_final_observation_is_repeated_in_every_part(tmp_path):
    episode = nested_episode(3, has_final=False)
    with write(tmp_path / "x.zarr", [episode]) as dataset:
        for path, column in flatten("observations", dataset.episode(0).observations).items():
            np.testing.assert_array_equal(column[3], column[2], err_msg=path)
            np.testing.assert_array_equal(column[:3], episode.columns()[path][:3])


def test_parts_of_episodes_are_views_of_every_part():
    whole = nested_episode(8)
    part = whole.part(2, 6)
    assert len(part) == 4
    for path, column in part.columns().items():
        start, stop = 2, 6 + path.startswith("observations")
        np.testing.assert_array_equal(column, whole.columns()[path][start:stop])
        assert np.shares_memory(column, whole.columns()[path])


def test_frames_lie_at_least_sixteen_in_a_chunk_and_are_compressed(tmp_path):
    space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
    frames = np.zeros((40, 210, 160, 3), np.uint8)
    frames[:, 100:110, 50:60] = np.arange(40, dtype=np.uint8)[:, None, None, None]
    episode = Episode(frames, np.zeros(39, int), np.zeros(39), np.arange(39) == 38, np.zeros(39, bool))
    with write(
        tmp_path / "x.zarr", [episode], observation_space=space, action_space=spaces.Discrete(2), shard_rows=None
    ) as dataset:
        layout = dataset.contents.layouts["observations"]
        assert (layout.chunk_rows, layout.compressed) == (16, True)
        np.testing.assert_array_equal(dataset.episode(0).observations, frames)
        assert sum(entry.size for entry in dataset.contents.commit.objects.values()) < frames.nbytes / 50


def poisoned(path, row, value):
    episode = nested_episode(4, 7)
    whole = path.partition("/")[0]
    columns = {key: column.copy() for key, column in flatten(whole, getattr(episode, whole)).items()}
    columns[path][row] = value
    return nested_episode(4, 7, **{whole: unflatten(whole, columns)})


@pytest.mark.parametrize(
    ("path", "row", "value", "words"),
    [
        ("observations/pose/0", 2, np.nan, r"episode 1, step 2: observations/pose/0\[0\]: got nan; allowed: finite"),
        ("observations/pose/1", 4, 7, r"episode 1, step 4: observations/pose/1: got 7; allowed: Discrete\(3, start=1"),
        ("observations/c", 0, 2, r"episode 1, step 0: observations/c\[0\]: got 2"),
        ("actions/arm", 3, 1.5, r"episode 1, step 3: actions/arm\[0\]: got 1.5; allowed: Box"),
        ("actions/gripper", 1, 2, r"episode 1, step 1: actions/gripper: got 2; allowed: Discrete\(2\)"),
    ],
)
def test_a_value_that_no_learner_may_see_is_named_by_part(tmp_path, path, row, value, words):
    with pytest.raises(InvalidDataError, match=words):
        write(tmp_path / "x.zarr", [nested_episode(4), poisoned(path, row, value)])
    assert not (tmp_path / "x.zarr").exists()


def test_parts_that_are_missing_or_misshapen_are_named(tmp_path):
    good = nested_episode(4)
    less = {key: part for key, part in good.observations.items() if key != "camera"}
    with pytest.raises(InvalidDataError, match=r"observations of the first episode: got \[.*camera.* as in Dict\("):
        write(tmp_path / "x.zarr", [nested_episode(4, observations=less)])
    with pytest.raises(InvalidDataError, match=r"episode 1: got fields .*the same parts of observations and actions"):
        write(tmp_path / "x.zarr", [good, nested_episode(4, observations=less)])
    wrong = {**good.observations, "camera": np.zeros((5, 4, 4), np.uint8)}
    with pytest.raises(InvalidDataError, match=r"episode 1: observations/camera: got uint8 of shape \(4, 4\)"):
        write(tmp_path / "x.zarr", [good, nested_episode(4, observations=wrong)])
    short = {**good.actions, "arm": good.actions["arm"][:3]}
    with pytest.raises(InvalidDataError, match=r"episode 0: actions/arm: got 3 rows; allowed: 4"):
        nested_episode(4, actions=short)
    with pytest.raises(InvalidDataError, match="actions/arm: got one value; allowed: 4"):
        nested_episode(4, actions={**good.actions, "arm": 3})


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Dict(a=spaces.Dict(b=spaces.Text(3))), r"x/a/b: got Text\(.*allowed: Box, .* or Dict and Tuple"),
        (spaces.Dict({"a/b": spaces.Discrete(2)}), "x: got the key 'a/b'"),
        (spaces.Tuple((spaces.Sequence(spaces.Discrete(2)),)), "x/0: got Sequence"),
        (spaces.Dict(a=spaces.Box(0, 1, (0,))), "x/a: got Box.*at least one number"),
    ],
)
def test_spaces_that_no_arrays_can_hold(space, words):
    with pytest.raises(InvalidDataError, match=words):
        check_space("x", space)


def edit_space(dataset, name, edit):
    """Change what the attributes say of a space, and commit that."""
    root = Path(dataset.path)
    metadata = json.loads((root / "zarr.json").read_bytes())
    attributes = metadata["attributes"]["dask_rl"]
    attributes[name] = edit(attributes[name])
    content = json.dumps(metadata).encode()
    (root / "zarr.json").write_bytes(content)
    commit = json.loads((root / "commit.json").read_bytes())
    commit["objects"]["zarr.json"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (root / "commit.json").write_text(json.dumps(commit))


@pytest.mark.parametrize(
    ("name", "part", "words"),
    [
        (
            "observation_space",
            {"more": {"type": "Discrete", "n": 2}},
            "data/observations/more in .*: got no such array",
        ),
        ("observation_space", {"c": {"type": "MultiBinary", "n": 3}}, r"data/observations/c in .*of shape \(2,\)"),
        ("observation_space", {"../x": {"type": "Discrete", "n": 2}}, "the key '../x'"),
        ("observation_space", {"pose": {"type": "Tuple", "subspaces": []}}, "observations/pose: got no parts"),
        ("action_space", None, "data/actions in .*: got no such array"),
    ],
)
def test_a_space_that_its_arrays_do_not_fit_is_found_when_opening(dataset, name, part, words):
    flat = {"type": "Discrete", "n": 2}
    edit_space(dataset, name, lambda space: {**space, "subspaces": space["subspaces"] | part} if part else flat)
    with pytest.raises(CorruptDataError, match=words):
        OfflineDataset.open(dataset.path)


def test_an_array_that_is_no_part_of_the_space_is_found_when_opening(dataset):
    def without(space):
        return {**space, "subspaces": {key: part for key, part in space["subspaces"].items() if key != "c"}}

    edit_space(dataset, "observation_space", without)
    with pytest.raises(CorruptDataError, match=r"data/observations/c in .*: got an array that is no part of its space"):
        OfflineDataset.open(dataset.path)


@pytest.mark.parametrize("field", ["observations/pose/0", "actions/arm"])
def test_a_deep_verification_looks_at_every_part(dataset, field):
    array = zarr.open_group(dataset.path, mode="r+", use_consolidated=False)[f"data/{field}"]
    last = int(dataset.episode_ends[0]) - 1
    array[last] = 0.25  # of a final observation it is a value like others, of an action it is none
    rows = array[:]
    recommit(Path(dataset.path), f"data/{field}")
    reopened = OfflineDataset.open(dataset.path)
    assert reopened.read(field, last, last + 1).tolist() == rows[last : last + 1].tolist()
    if field.startswith("observations"):
        reopened.verify(deep=True)
        array[0] = np.nan
        recommit(Path(dataset.path), f"data/{field}")
    with pytest.raises(InvalidDataError, match=rf"\({field}, row"):
        OfflineDataset.open(dataset.path).verify(deep=True)


def recommit(root, array):
    commit = json.loads((root / "commit.json").read_bytes())
    for key, entry in commit["objects"].items():
        if key.startswith(f"{array}/c/"):
            content = (root / key).read_bytes()
            entry |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (root / "commit.json").write_text(json.dumps(commit))
