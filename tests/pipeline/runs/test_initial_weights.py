"""Weights to begin with: those of another run to the bit, refused where they are of other modules."""

import json
import shutil

import pytest
import torch
import yaml

from dask_rl.pipeline.runs.initial_weights import initial_checkpoint
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.train import train
from dask_rl.pipeline.runs.trained_policy import load_policy
from dask_rl.storage.errors import CheckpointError, ConfigError


@pytest.fixture
def make_job(feed_dataset, tmp_path):
    def make(run, **settings):
        job = {
            "dataset": str(feed_dataset),
            "algorithm": {"name": "bc", "hidden_sizes": [8]},
            "num_steps": 6,
            "batch_size": 16,
            "checkpoint": {"every_steps": 2, "keep_last": 9},
            "run": str(tmp_path / run),
            **settings,
        }
        return parse_job(yaml.safe_dump(job))

    return make


def weights_of(run):
    return load_policy(run)._module.get_state()


def test_a_run_begins_with_the_weights_of_another(make_job, tmp_path):
    train(make_job("first", seed=1))
    barely = {"name": "bc", "hidden_sizes": [8], "learning_rate": 1e-12}
    train(make_job("second", algorithm=barely, num_steps=1, initial_weights=str(tmp_path / "first")))
    train(make_job("third", algorithm=barely, num_steps=1))
    first, second, third = (weights_of(tmp_path / name) for name in ("first", "second", "third"))
    assert all(torch.allclose(second[name], first[name], atol=1e-8) for name in first)
    assert not all(torch.allclose(third[name], first[name], atol=1e-3) for name in first)


def test_resuming_such_a_run_is_bit_identical(make_job, tmp_path):
    train(make_job("first", seed=1))
    job = make_job("second", initial_weights=str(tmp_path / "first"))
    undisturbed = train(job).weights_hash
    run = RunDirectory(job.run)
    run.result_file.unlink()
    for step in (4, 6):
        shutil.rmtree(run.checkpoints / f"step-{step:012d}")
    assert train(job).weights_hash == undisturbed
    run.result_file.unlink()
    shutil.rmtree(run.checkpoints)  # killed before the first checkpoint
    assert train(job).weights_hash == undisturbed


def test_modules_find_theirs_in_a_run_with_several(make_job, tmp_path, feed_dataset, other_dataset):
    both = {"left": str(feed_dataset), "right": str(other_dataset)}
    train(make_job("first", dataset=both, num_steps=4))
    train(make_job("second", dataset=both, num_steps=2, initial_weights=str(tmp_path / "first")))
    with pytest.raises(ConfigError, match=r"initial_weights: module of .*got 'default_module'"):
        train(make_job("third", initial_weights=str(tmp_path / "first")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": {"name": "bc", "hidden_sizes": [16]}}, r"initial_weights: .*weights .*shape \(8"),
        ({"algorithm": {"name": "iql", "hidden_sizes": [8]}}, "initial_weights: .*got weights of bc; allowed: iql"),
        ({"dataset": "other"}, r"initial_weights: .*got a module for actions in Discrete\(5\)"),
        ({"initial_weights": "nowhere"}, "initial_weights: got nowhere, which is neither"),
    ],
)
def test_other_networks_are_refused(make_job, tmp_path, other_dataset, settings, message):
    train(make_job("first", num_steps=2))
    settings = {key: str(other_dataset) if value == "other" else value for key, value in settings.items()}
    with pytest.raises(ConfigError, match=message):
        train(make_job("second", **{"initial_weights": str(tmp_path / "first")} | settings))


def test_a_damaged_checkpoint_is_refused(make_job, tmp_path):
    train(make_job("first", num_steps=2))
    for file in (tmp_path / "first").rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="bytes"):
        train(make_job("second", initial_weights=str(tmp_path / "first")))


def test_a_checkpoint_of_no_group_is_refused(make_job, tmp_path):
    train(make_job("first", num_steps=2))
    path = initial_checkpoint(tmp_path / "first")
    assert path.name == "step-000000000002"
    metadata = json.loads((path / "metadata.json").read_text())
    metadata["metadata"]["constructor"] = 3
    (path / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(CheckpointError, match="checksum"):
        train(make_job("second", initial_weights=str(path)))
