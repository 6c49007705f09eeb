"""Datasets in an S3-compatible store: a real server of the protocol, a real client, and a network that fails."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from faulty_stores import Faults, proxy

from dask_rl.pipeline.datasets.imports import import_dataset
from dask_rl.storage import DatasetError, DatasetNotFoundError, DatasetWriter, OfflineDataset
from dask_rl.storage.errors import StoreAccessError
from dask_rl.storage.formats import ImportOptions

pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")
pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def server():
    running = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def faults():
    return Faults()


@pytest.fixture
def store(server, faults, monkeypatch):
    """A bucket behind a network; endpoint and credentials come from fsspec's configuration."""
    with proxy(server, faults) as endpoint:
        options = {
            "endpoint_url": endpoint,
            "key": "me",
            "secret": "hidden",
            "client_kwargs": {"region_name": "eu-central-1"},
        }
        monkeypatch.setitem(fsspec.config.conf, "s3", options)
        files = fsspec.filesystem("s3", skip_instance_cache=True)
        bucket = f"bucket-{time.monotonic_ns()}"
        files.mkdir(bucket)
        yield f"s3://{bucket}", files, options


@pytest.fixture
def settings(settings_of_pendulum):
    return {**settings_of_pendulum, "shard_rows": 64}


def write(url, episodes, settings, **more):
    with DatasetWriter(url, **settings, **more) as writer:
        writer.add_episodes(episodes)
        return writer.finish()


def test_a_tenth_of_all_requests_fails_and_nothing_is_lost(tmp_path, store, faults, make_episodes, settings):
    url = f"{store[0]}/data.zarr"
    local = write(tmp_path / "d.zarr", make_episodes(), settings)
    faults.share, faults.latency_seconds = 0.1, 0.005
    remote = write(url, make_episodes(), settings)
    assert remote.content_hash == local.content_hash
    for field in local.arrays:
        np.testing.assert_array_equal(remote.read(field, 3, 200), local.read(field, 3, 200))
    remote.verify(deep=True)
    assert faults.num_failed > 10
    with pytest.raises(DatasetError, match="a dataset that exists already"):
        DatasetWriter(url, **settings)
    new = write(url, make_episodes(5, seed=3), settings, overwrite=True)
    new.verify(deep=True)
    remote.close()
    with pytest.raises(DatasetError, match="another dataset than when it was opened"):
        remote.read("rewards", 0, 64)


def test_worker_processes_write_there_too(tmp_path, store, monkeypatch):
    monkeypatch.setenv("FSSPEC_S3", json.dumps(store[2]))  # read by worker processes as they start
    rng, ends = np.random.default_rng(0), np.arange(1, 601) % 20 == 0
    columns = {"observations": rng.normal(size=(600, 3)).astype(np.float32), "rewards": np.ones(600, np.float32)}
    np.savez(tmp_path / "a.npz", **columns, actions=np.zeros((600, 1), np.float32), terminals=ends)
    options = ImportOptions(shard_rows=64)
    import_dataset(tmp_path / "a.npz", tmp_path / "here.zarr", options=options)
    import_dataset(tmp_path / "a.npz", f"{store[0]}/there.zarr", options=options, num_workers=2)
    there = OfflineDataset.open(f"{store[0]}/there.zarr")
    there.verify(deep=True)
    assert there.content_hash == OfflineDataset.open(tmp_path / "here.zarr").content_hash
    assert not [key for key in store[1].find(store[0]) if "partial" in key]


def test_a_manifest_is_created_only_where_there_is_none(store, make_episodes, settings):
    """The store itself refuses: a look before and a write after would let two of them through."""
    late = DatasetWriter(f"{store[0]}/data.zarr", **settings)
    late.add_episodes(make_episodes(3))
    late._build._data._request(
        "commit.json", lambda files, _: files.pipe_file(f"{store[0]}/data.zarr/commit.json", b"{}")
    )
    with pytest.raises(FileExistsError):
        late._build._data.put("commit.json", [b"x"], create=True)
    with pytest.raises(DatasetError, match="complete first"):
        late.finish()


def test_not_found_and_no_permission(store, server, monkeypatch):
    with pytest.raises(DatasetNotFoundError, match="no such path"):
        OfflineDataset.open(f"{store[0]}/other.zarr")
    with pytest.raises(DatasetNotFoundError, match="no such path"):
        OfflineDataset.open("s3://no-such-bucket/other.zarr")
    faults = Faults(status=403)
    with proxy(server, faults) as endpoint:
        monkeypatch.setitem(fsspec.config.conf, "s3", store[2] | {"endpoint_url": endpoint})
        with pytest.raises(StoreAccessError, match="got no permission") as caught:
            OfflineDataset.open(f"{store[0]}/data.zarr")
        assert "hidden" not in str(caught.value)


PROGRAM = """
import sys, numpy as np
sys.path[:0] = sys.argv[2:]
from conftest import generate
from gymnasium import spaces
from dask_rl.storage import DatasetWriter
settings = dict(observation_space=spaces.Box(-np.inf, np.inf, (3,), np.float32),
                action_space=spaces.Box(-2, 2, (1,), np.float32), shard_rows=64)
with DatasetWriter(sys.argv[1], **settings) as writer:
    writer.add_episodes(generate(100))
"""


def test_kill_9_of_a_writer_and_the_next_run_completes(tmp_path, store, make_episodes, settings):
    url, files, options = f"{store[0]}/data.zarr", store[1], store[2]
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", PROGRAM, url, str(tests / "storage"), str(tests / "support")]
    environment = os.environ | {"FSSPEC_S3": json.dumps(options)}
    process = subprocess.Popen(command, env=environment)
    while not files.glob(f"{url}.partial/receipts-*/3.json", refresh=True):
        assert process.poll() is None
        files.invalidate_cache()
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    with pytest.raises(DatasetError):
        OfflineDataset.open(url)
    first = files.info(f"{url}/data/rewards/c/0", refresh=True)["LastModified"]
    subprocess.run(command, env=environment, check=True)
    again = OfflineDataset.open(url)
    again.verify(deep=True)
    files.invalidate_cache()
    assert files.info(f"{url}/data/rewards/c/0", refresh=True)["LastModified"] == first
    assert again.content_hash == write(tmp_path / "d.zarr", make_episodes(100), settings).content_hash
    files.invalidate_cache()
    assert not files.exists(f"{url}.partial")
