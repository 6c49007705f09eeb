"""Runs whose data lies behind a URL."""

import fsspec
import pytest
import yaml
from faulty_stores import Faults, FaultyFileSystem
from job_cases import write_small_dataset

from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.train import train
from dask_rl.storage.remote.requests import RequestPolicy

pytestmark = pytest.mark.data


@pytest.mark.parametrize("resident", [False, pytest.param(True, marks=pytest.mark.storm)])
def test_a_run_is_the_same_as_from_a_directory(tmp_path, monkeypatch, resident):
    memory, faults = fsspec.filesystem("memory"), Faults(share=0.05)
    monkeypatch.setattr(FaultyFileSystem, "faults", faults)
    policy = RequestPolicy(first_delay_seconds=0.001)
    monkeypatch.setattr("dask_rl.storage.remote.directory.RequestPolicy", lambda: policy)
    path = write_small_dataset(tmp_path / "data.zarr")
    memory.put(str(path), "/bucket/data.zarr", recursive=True)
    results = []
    for number, dataset in enumerate((str(path), "faulty://bucket/data.zarr")):
        job = {
            "dataset": dataset,
            "algorithm": {"name": "bc", "hidden_sizes": [8]},
            "num_steps": 30,
            "batch_size": 16,
            "data": {"resident": resident},
            "learners": {"num_learners": 0, "compile": "off"},
            "run": str(tmp_path / f"run{number}"),
        }
        results.append(train(parse_job(yaml.safe_dump(job))).weights_hash)
    assert results[0] == results[1]
    assert faults.requests
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
