"""`dask-rl data transform`, as a user meets it."""

import json

import numpy as np
import pytest
from gymnasium import spaces
from random_episodes import generate

import dask_rl
from dask_rl.pipeline.views.cli import run

SPACES = {
    "observation_space": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "action_space": spaces.Box(-2, 2, (1,), np.float32),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "a.zarr"
    with dask_rl.DatasetWriter(path, **SPACES, shard_rows=64) as writer:
        writer.add_episodes(generate(num_episodes=12))
    return str(path)


def test_several_sources_two_destinations_and_infos(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--validation", "v.zarr", "--validation-fraction", "0.25", "--ids", "renumber", "--normalize"]
    assert run(["data", "transform", source, source, "t.zarr", *options, "--infos", "", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_episodes"], found["validation"]["num_episodes"]) == (18, 6)
    with dask_rl.OfflineDataset.open("t.zarr") as dataset:
        assert dataset.content_hash == found["content_hash"]
        assert "infos/behavior_logp" not in dataset.arrays
        assert "normalization" in dataset.provenance
    assert run(["data", "transform", source, "r.zarr", "--rename-infos", "behavior_logp=logp"]) == 0
    assert "dropped" in capsys.readouterr().out
    with dask_rl.OfflineDataset.open("r.zarr") as dataset:
        assert "infos/logp" in dataset.arrays


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--where", "length.real > 3"], 2, "where: got 'length.real'"),
        (["--infos", "speed"], 2, "got 'speed'; allowed: behavior_logp"),
        (["--rename-infos", "speed"], 2, "allowed: OLD=NEW"),
        (["--top-fraction", "2"], 2, "top_fraction: got 2"),
        (["--ids", "new"], 2, "ids: got 'new'"),
        (["--validation", "v.zarr"], 2, "a dataset and no fraction"),
        (["--min-return", "1e9"], 2, "12 dropped: return below"),
        (["--denormalize"], 2, "which is not standardised"),
        (["--reward-scale", "1e300"], 1, "rewards: got"),
    ],
)
def test_what_is_wrong_is_said_on_one_line(source, tmp_path, monkeypatch, capsys, options, code, message):
    monkeypatch.chdir(tmp_path)
    assert run(["data", "transform", source, "d.zarr", *options]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_places(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["data", "transform", source]) == 2
    assert run(["data", "transform", "no.zarr", "d.zarr"]) == 1
    assert "no.zarr: got no such path" in capsys.readouterr().err
    assert run(["data", "transform", source, source, "--overwrite"]) == 2
    assert "the path of a source" in capsys.readouterr().err
