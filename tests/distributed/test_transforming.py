"""Transforms by worker processes: the dataset of one stream, whatever is killed."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from distributed import Client, LocalCluster
from gymnasium import spaces
from random_episodes import generate

import dask_rl
from dask_rl.storage.errors import ConfigError

pytestmark = pytest.mark.data

SPACES = {
    "observation_space": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "action_space": spaces.Box(-2, 2, (1,), np.float32),
}
CONFIG = dask_rl.TransformConfig(
    where="length > 3", top_fraction=0.8, reward_scale=2, rename_infos={"behavior_logp": "logp"}, shard_rows=64
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    for seed, name in enumerate(("a.zarr", "b.zarr")):
        with dask_rl.DatasetWriter(root / name, **SPACES, shard_rows=128) as writer:
            writer.add_episodes(generate(num_episodes=40, seed=seed))
    return [root / "a.zarr", root / "b.zarr"]


def test_the_datasets_are_the_same_for_any_number_of_workers(sources, tmp_path, cluster_client):
    config = CONFIG.model_copy(update={"validation_fraction": 0.3, "normalize": True})
    alone = dask_rl.transform_dataset(sources, tmp_path / "a.zarr", config=config, validation=tmp_path / "av.zarr")
    seen = []
    shared = dask_rl.transform_dataset(
        sources,
        tmp_path / "s.zarr",
        config=config,
        validation=tmp_path / "sv.zarr",
        client=cluster_client,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert (shared.content_hash, shared.validation.content_hash) == (alone.content_hash, alone.validation.content_hash)
    assert (shared.dropped, shared.notes) == (alone.dropped, alone.notes)
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    for name in ("s.zarr", "sv.zarr"):
        with dask_rl.OfflineDataset.open(tmp_path / name) as dataset:
            dataset.verify(deep=True)
    with pytest.raises(ConfigError, match="got 2 and a client"):
        dask_rl.transform_dataset(sources, tmp_path / "t.zarr", client=cluster_client, num_workers=2)


def test_nested_observations_and_missing_ends_by_workers(tmp_path, cluster_client):
    space = spaces.Dict({"camera": spaces.Box(0, 255, (8, 8), np.uint8), "pose": spaces.Box(-9, 9, (2,), np.float32)})
    rng = np.random.default_rng(0)
    with dask_rl.DatasetWriter(
        tmp_path / "a.zarr", observation_space=space, action_space=SPACES["action_space"], shard_rows=64
    ) as writer:
        for number, episode in enumerate(generate(num_episodes=20)):
            rows = len(episode) + 1
            camera, pose = rng.integers(0, 256, (rows, 8, 8), np.uint8), rng.random((rows, 2), np.float32)
            nested = {"camera": camera, "pose": pose}
            writer.add_episode(dataclasses.replace(episode, observations=nested, has_final_observation=number % 4 > 0))
    config = dask_rl.TransformConfig(normalize=True, where="length != 7", shard_rows=128)
    alone = dask_rl.transform_dataset(tmp_path / "a.zarr", tmp_path / "b.zarr", config=config)
    shared = dask_rl.transform_dataset(tmp_path / "a.zarr", tmp_path / "c.zarr", config=config, client=cluster_client)
    assert shared.content_hash == alone.content_hash
    with dask_rl.OfflineDataset.open(tmp_path / "c.zarr") as dataset:
        dataset.verify(deep=True)
        assert list(dataset.provenance["normalization"]["parts"]) == ["observations/pose"]
        assert 0 < dataset.has_final_observation.sum() < dataset.num_episodes


@pytest.mark.storm
def test_a_driver_that_is_killed_leaves_shards_that_the_next_one_keeps(sources, tmp_path):
    wanted = dask_rl.transform_dataset(sources, tmp_path / "wanted.zarr", config=CONFIG).content_hash
    code = (
        "import os, dask_rl\n"
        "def die(done, total):\n"
        "    if done > total * 0.7:\n"
        "        os.kill(os.getpid(), 9)\n"
        f"config = dask_rl.TransformConfig.model_validate_json({CONFIG.model_dump_json()!r})\n"
        f"dask_rl.transform_dataset({list(map(str, sources))!r}, 'd.zarr', config=config, progress=die)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    shards = {path: path.stat().st_mtime_ns for path in tmp_path.glob(".d.zarr.partial/**/c/*") if path.is_file()}
    assert shards
    assert dask_rl.transform_dataset(sources, tmp_path / "d.zarr", config=CONFIG).content_hash == wanted
    kept = {path.stat().st_mtime_ns for path in (tmp_path / "d.zarr").glob("**/c/*") if path.is_file()}
    assert set(shards.values()) <= kept
    assert not list(tmp_path.glob(".*"))


@pytest.mark.storm
def test_a_killed_worker_costs_nothing_and_a_second_run_finishes(sources, tmp_path):
    wanted = dask_rl.transform_dataset(sources, tmp_path / "wanted.zarr", config=CONFIG).content_hash
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        killed = []

        def kill_one(done, total):
            if done > total * 0.6 and not killed:  # while shards are written
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        summary = dask_rl.transform_dataset(
            sources, tmp_path / "d.zarr", config=CONFIG, client=client, progress=kill_one
        )
        assert killed
        assert summary.content_hash == wanted

        def stop(done, total):
            if done > total * 0.7:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            dask_rl.transform_dataset(sources, tmp_path / "e.zarr", config=CONFIG, client=client, progress=stop)
        finished = [path.name for path in tmp_path.glob(".e.zarr.partial/**/*") if path.is_file()]
        assert finished
        again = dask_rl.transform_dataset(sources, tmp_path / "e.zarr", config=CONFIG, client=client)
    assert again.content_hash == wanted
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["d.zarr", "e.zarr", "wanted.zarr"]


@pytest.mark.service
def test_the_command_has_workers_of_its_own(sources, tmp_path):
    wanted = dask_rl.transform_dataset(sources, tmp_path / "wanted.zarr", config=CONFIG)
    options = ["--where", "length > 3", "--top-fraction", "0.8", "--reward-scale", "2", "--shard-rows", "64"]
    options += ["--rename-infos", "behavior_logp=logp", "--workers", "1", "--json"]
    command = [sys.executable, "-m", "dask_rl", "data", "transform", *map(str, sources), "d.zarr", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["content_hash"] == wanted.content_hash
    assert found["dropped"] == wanted.dropped
