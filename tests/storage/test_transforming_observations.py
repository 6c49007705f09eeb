"""Observations that are standardised, and become again what they were."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from dask_rl.storage import DatasetWriter, Episode, OfflineDataset, column_statistics, transform_from_json
from dask_rl.storage.errors import ConfigError, DatasetError
from dask_rl.storage.transforming import TransformConfig, transform_datasets

pytestmark = pytest.mark.data

ACTIONS = spaces.Discrete(2)


def make_episode(observations, length, **changes):
    return Episode(
        observations=observations,
        actions=np.zeros(length, np.int64),
        rewards=np.ones(length, np.float32),
        terminations=np.arange(length) == length - 1,
        truncations=np.zeros(length, bool),
        **changes,
    )


def write(path, space, episodes, **changes):
    with DatasetWriter(path, observation_space=space, action_space=ACTIONS, shard_rows=64, **changes) as writer:
        writer.add_episodes(episodes)
        return writer.finish()


def transform(source, dest, validation=None, **config):
    transform_datasets(source, dest, config=TransformConfig(**config), validation=validation)
    dataset = OfflineDataset.open(dest)
    dataset.verify(deep=True)
    return dataset


@pytest.fixture
def line(tmp_path):
    """Steps 0, 2 and 4, 6 with final observations 100 and 200, and a long episode of sevens."""
    rows = ([0, 2, 100], [4, 6, 200], [7] * 40)
    episodes = [
        make_episode(np.array(row, np.float32)[:, None], len(row) - 1, id=number) for number, row in enumerate(rows)
    ]
    write(tmp_path / "line.zarr", spaces.Box(-8, np.inf, (1,), np.float32), episodes, environment="Line-v0").close()
    return tmp_path / "line.zarr"


def test_by_hand(line, tmp_path):
    """Mean 3 and variance 5 over the steps 0, 2, 4, 6."""
    dataset = transform(line, tmp_path / "d.zarr", normalize=True, where="id < 2")
    scale = np.sqrt(5) + 1e-3
    found = np.concatenate([episode.observations[:, 0] for episode in dataset.episodes()])
    np.testing.assert_allclose(found, np.subtract([0, 2, 100, 4, 6, 200], 3) / scale, rtol=1e-6)
    assert found.dtype == np.float32
    kept = dataset.provenance["normalization"]["parts"]["observations"]
    assert (kept["mean"], kept["std"], kept["eps"], kept["dtype"]) == ([3.0], [5**0.5], 1e-3, "float32")
    np.testing.assert_allclose(dataset.observation_space.low, [-11 / scale], rtol=1e-6)
    assert dataset.observation_space.high == np.inf
    assert dataset.environment is None
    settings = {key: value for key, value in kept.items() if key != "dtype"}
    with OfflineDataset.open(line) as source:
        raw = source.episode(1).observations
    np.testing.assert_allclose(transform_from_json(settings).apply(raw), dataset.episode(1).observations, rtol=1e-5)


def test_it_is_undone(line, tmp_path):
    transform(line, tmp_path / "d.zarr", normalize=True)
    middle = transform(tmp_path / "d.zarr", tmp_path / "m.zarr", max_length=2)  # the statistics are handed on
    back = transform(tmp_path / "m.zarr", tmp_path / "b.zarr", denormalize=True)
    assert "normalization" in middle.provenance
    assert "normalization" not in back.provenance
    with OfflineDataset.open(line) as source:
        assert (back.observation_space, back.environment) == (source.observation_space, "Line-v0")
        for number in range(2):
            found, wanted = back.episode(number).observations, source.episode(number).observations
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_validation_gets_the_statistics_of_training(line, tmp_path):
    training = transform(line, tmp_path / "t.zarr", tmp_path / "v.zarr", normalize=True, validation_fraction=0.3)
    statistics = column_statistics(training, "observations")
    np.testing.assert_allclose(statistics.mean, 0, atol=1e-6)
    (std,) = training.provenance["normalization"]["parts"]["observations"]["std"]
    np.testing.assert_allclose(statistics.std, std / (std + 1e-3), rtol=1e-6)
    merged = transform([tmp_path / "t.zarr", tmp_path / "v.zarr"], tmp_path / "m.zarr")
    assert merged.provenance["normalization"] == training.provenance["normalization"]
    with OfflineDataset.open(tmp_path / "v.zarr") as validation:
        assert validation.provenance["normalization"] == training.provenance["normalization"]


def test_parts_keep_their_kinds(tmp_path):
    rng = np.random.default_rng(0)
    space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (2, 2), np.uint8),
            "choice": spaces.Discrete(3),
            "count": spaces.Box(0, 1000, (2,), np.int32),
            "pose": spaces.Tuple((spaces.Box(-5, 5, (), np.float64), spaces.MultiBinary(2))),
        }
    )

    def observe(rows):
        return {
            "camera": rng.integers(0, 256, (rows, 2, 2), np.uint8),
            "choice": rng.integers(0, 3, rows),
            "count": rng.integers(0, 1001, (rows, 2), np.int32),
            "pose": {"0": rng.uniform(-5, 5, rows), "1": rng.integers(0, 2, (rows, 2), np.int8)},
        }

    episodes = [make_episode(observe(length + 1), length) for length in (30, 50, 1)]
    last = episodes[2].columns()
    episodes[2] = make_episode(
        {**episodes[2].observations, "count": np.repeat(last["observations/count"][:1], 2, axis=0)},
        1,
        has_final_observation=False,
    )
    source = write(tmp_path / "a.zarr", space, episodes)
    dataset = transform(source.path, tmp_path / "b.zarr", normalize=True)
    assert sorted(dataset.provenance["normalization"]["parts"]) == ["observations/count", "observations/pose/0"]
    wanted = {"observations/count": np.float32, "observations/pose/0": np.float64}
    for path, spec in source.arrays.items():
        assert dataset.arrays[path].dtype == wanted.get(path, spec.dtype), path
        if path in wanted:
            statistics = column_statistics(source, path)
            values = (source.read(path, 0, 31) - statistics.mean) / (statistics.std + 1e-3)
            np.testing.assert_allclose(dataset.read(path, 0, 31), values, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(dataset.read(path, 0, 84), source.read(path, 0, 84))
    assert dataset.observation_space.contains(
        {
            "camera": dataset.read("observations/camera", 0, 1)[0],
            "choice": dataset.read("observations/choice", 0, 1)[0],
            "count": dataset.read("observations/count", 0, 1)[0],
            "pose": (
                np.asarray(dataset.read("observations/pose/0", 0, 1)[0]),
                dataset.read("observations/pose/1", 0, 1)[0],
            ),
        }
    )
    back = transform(tmp_path / "b.zarr", tmp_path / "c.zarr", denormalize=True)
    assert back.observation_space == space
    np.testing.assert_array_equal(back.read("observations/count", 0, 84), source.read("observations/count", 0, 84))
    found = back.read("observations/pose/0", 0, 82), source.read("observations/pose/0", 0, 82)
    np.testing.assert_allclose(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("names", "config", "message"),
    [
        (["line"], {"denormalize": True}, "denormalize: got line.zarr, which is not standardised"),
        (["d"], {"normalize": True}, "normalize: got observations that are standardised"),
        (["d", "e"], {}, "observation"),
        (["choice"], {"normalize": True}, r"normalize: got Discrete\(3\)"),
    ],
)
def test_what_cannot_be_is_refused(line, tmp_path, names, config, message):
    transform(line, tmp_path / "d.zarr", normalize=True)
    transform(line, tmp_path / "e.zarr", normalize=True, where="id < 2")
    write(tmp_path / "choice.zarr", spaces.Discrete(3), [make_episode(np.zeros(3, np.int64), 2)]).close()
    with pytest.raises(ConfigError, match=message):
        transform([tmp_path / f"{name}.zarr" for name in names], tmp_path / "x.zarr", **config)
    assert not (tmp_path / "x.zarr").exists()


def test_both_is_refused():
    with pytest.raises(ValueError, match="normalize: got with denormalize"):
        TransformConfig(normalize=True, denormalize=True)


@pytest.mark.parametrize("change", [{"mean": [1.0, 2.0]}, {"std": [-1.0]}, {"dtype": "object"}, {"eps": 0.0}])
def test_statistics_that_make_no_sense_are_refused(line, tmp_path, change):
    found = transform(line, tmp_path / "d.zarr", normalize=True).provenance["normalization"]
    found["parts"]["observations"].update(change)
    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    provenance = json.loads(json.dumps({"normalization": found}))
    episode = make_episode(np.zeros((3, 1), np.float32), 2)
    write(tmp_path / "bad.zarr", space, [episode], provenance=provenance).close()
    with pytest.raises(DatasetError, match=r"normalization of .*bad.zarr"):
        transform(tmp_path / "bad.zarr", tmp_path / "x.zarr", denormalize=True)
