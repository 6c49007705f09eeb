"""Imports by worker processes: the dataset of one stream, for any number of workers, whatever is killed."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import dask_rl
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, InvalidDataError

pytestmark = pytest.mark.data

KILLS = Path(__file__).parents[2] / "benchmarks" / "import_kills.py"
OPTIONS = dask_rl.ImportOptions(shard_rows=64)


def write_source(path, rewards=None, num_episodes=30):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, num_episodes)
    ends, total = np.cumsum(lengths) - 1, int(lengths.sum())
    with h5py.File(path, "w") as file:
        file["observations"] = rng.standard_normal((total, 3), np.float32)
        file["actions"] = rng.uniform(-1, 1, (total, 1)).astype(np.float32)
        values = rng.standard_normal(total, np.float32)
        for step, value in (rewards or {}).items():
            values[step] = value
        file["rewards"] = values
        file["terminals"] = np.isin(np.arange(total), ends[::2]).astype(np.float32)
        file["episode_terminals"] = np.isin(np.arange(total), ends).astype(np.float32)
        file["discrete_action"] = False
        file["version"] = "1.0"
    return path


def test_the_dataset_is_the_same_for_any_number_of_workers(tmp_path, cluster_client):
    source = write_source(tmp_path / "source.h5", {100: np.nan})
    options = OPTIONS.model_copy(update={"on_invalid": "drop", "clip_actions": True})
    alone = dask_rl.import_dataset(source, tmp_path / "alone.zarr", options=options)
    seen = []
    shared = dask_rl.import_dataset(
        source,
        tmp_path / "shared.zarr",
        options=options,
        client=cluster_client,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert shared.content_hash == alone.content_hash
    assert shared.dropped == alone.dropped == {"rewards: not finite": 1}
    assert shared.notes == alone.notes
    assert (shared.num_steps, shared.rule) == (alone.num_steps, alone.rule)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    with OfflineDataset.open(tmp_path / "shared.zarr") as dataset:
        dataset.verify(deep=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["alone.zarr", "shared.zarr", "source.h5"]


def test_bad_values_name_their_place_and_leave_nothing(tmp_path, cluster_client):
    source = write_source(tmp_path / "source.h5", {100: np.nan})
    with pytest.raises(InvalidDataError, match=r"source.h5: episode \d+, step \d+, rewards: got nan"):
        dask_rl.import_dataset(source, tmp_path / "data.zarr", options=OPTIONS, client=cluster_client)
    assert [entry.name for entry in tmp_path.iterdir()] == ["source.h5"]


def test_workers_or_a_client(tmp_path, cluster_client):
    source = write_source(tmp_path / "source.h5")
    with pytest.raises(ConfigError, match="got 2 and a client"):
        dask_rl.import_dataset(source, tmp_path / "data.zarr", client=cluster_client, num_workers=2)


@pytest.mark.service
def test_the_command_has_workers_of_its_own(tmp_path):
    source = write_source(tmp_path / "source.h5")
    wanted = dask_rl.import_dataset(source, tmp_path / "alone.zarr").content_hash
    command = [sys.executable, "-m", "dask_rl", "data", "import", source.name, "data.zarr", "--workers", "2", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["content_hash"] == wanted


@pytest.mark.parametrize(
    ("kills", "seed"),
    [pytest.param(2, 0, marks=pytest.mark.service)]
    # Fifty in all; more at once would take longer than a test may.
    + [pytest.param(5, seed, marks=[pytest.mark.storm, pytest.mark.slow]) for seed in range(1, 11)],
)
def test_kill_9_loses_and_doubles_nothing(kills, seed):
    command = [sys.executable, str(KILLS), "--kills", str(kills), "--seed", str(seed)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60 * kills, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{kills} of {kills} imports" in run.stdout


def test_append_by_workers_as_by_a_stream(tmp_path, cluster_client):
    first, second = write_source(tmp_path / "first.h5"), write_source(tmp_path / "second.h5", num_episodes=9)
    for name, client in (("alone.zarr", None), ("shared.zarr", cluster_client)):
        before = dask_rl.import_dataset(first, tmp_path / name, options=OPTIONS)
        after = dask_rl.import_dataset(second, tmp_path / name, options=OPTIONS, append=True, client=client)
        assert (before.num_episodes, after.num_episodes) == (30, 39)
    with OfflineDataset.open(tmp_path / "alone.zarr") as alone, OfflineDataset.open(tmp_path / "shared.zarr") as shared:
        assert alone.content_hash == shared.content_hash
        assert shared.generation == 2
        shared.verify(deep=True)


@pytest.mark.service
def test_the_command_appends(tmp_path):
    source = write_source(tmp_path / "source.h5")
    command = [sys.executable, "-m", "dask_rl", "data"]
    for arguments in (["import", source.name, "data.zarr"], ["append", source.name, "data.zarr"]):
        done = subprocess.run(
            [*command, *arguments, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
    assert json.loads(done.stdout)["num_episodes"] == 60
    done = subprocess.run(
        [*command, "append", source.name, "data.zarr", "--environment", "Pendulum-v1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "as in the dataset" in done.stderr
    nothing = subprocess.run(
        [*command, "append", source.name, "no.zarr"], cwd=tmp_path, capture_output=True, check=False
    )
    assert nothing.returncode == 1
