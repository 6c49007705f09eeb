"""Runs that go on: with the data that they began with, however these would be worked out now."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from dask_rl.pipeline.feed import config as feed
from dask_rl.pipeline.runs import train as training
from dask_rl.pipeline.runs import training_data
from dask_rl.pipeline.runs.job import TrainJob, parse_job
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.saved_data import load_saved_data
from dask_rl.pipeline.runs.train import train
from dask_rl.storage.checkpoints.store import CheckpointStore, load_checkpoint, save_checkpoint
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import CheckpointError, RunStateError
from dask_rl.storage.writer import DatasetWriter

pytestmark = pytest.mark.service


@pytest.fixture
def make_job(feed_dataset, other_dataset, tmp_path):
    """Build a job of one module, or of two."""

    def make(several: bool = False, **settings) -> TrainJob:
        bc = {"name": "bc", "hidden_sizes": [8], "normalize_observations": True}
        job = {
            "dataset": {"walk": str(feed_dataset), "run": str(other_dataset)} if several else str(feed_dataset),
            "algorithm": bc,
            "modules": {"run": {**bc, "normalize_observations": False}} if several else {},
            "data": {"resident": False, "memory_budget_bytes": 200_000},  # several windows an epoch
            "num_steps": 12,
            "batch_size": 16,
            "checkpoint": {"every_steps": 4, "keep_last": 9},
            "run": str(tmp_path / "run"),
            **settings,
        }
        return parse_job(yaml.safe_dump(job))

    return make


def back_to_the_first_checkpoint(run: Path) -> None:
    for path in [run / "result.json", *sorted((run / "checkpoints").glob("step-*"))[1:]]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("several", [False, True])
def test_statistics_and_sizes_are_those_of_the_checkpoint(make_job, monkeypatch, several):
    job = make_job(several)
    wanted = train(job).weights_hash
    run = RunDirectory(job.run)
    back_to_the_first_checkpoint(run.path)
    fit = training_data.fit_normalizers

    def a_bit_off(*arguments):
        found = fit(*arguments)
        return {
            path: replace(each, mean=tuple(np.nextafter(each.mean, np.inf).tolist())) for path, each in found.items()
        }

    # as another numpy, processor or release would have it
    monkeypatch.setattr(training_data, "fit_normalizers", a_bit_off)
    monkeypatch.setattr(feed, "INDEX_BYTES", 64)
    monkeypatch.setattr(feed, "BLOCK_BYTES", 1000)
    assert train(job).weights_hash == wanted
    saved, anew = (training_data.open_training_data(job, found) for found in (load_saved_data(run, job.datasets), None))
    for name, module in anew.modules.items():
        assert module.plan.feed.block_rows != saved.modules[name].plan.feed.block_rows
        assert module.normalize != saved.modules[name].normalize or not module.normalize


def test_a_run_that_goes_on_reads_no_facts_again(make_job, monkeypatch):
    job = make_job()
    done = train(job)
    back_to_the_first_checkpoint(Path(job.run))
    monkeypatch.setattr(OfflineDataset, "describe", lambda dataset: pytest.fail("the run has recorded them"))
    monkeypatch.setattr(training_data, "fit_normalizers", lambda *_: pytest.fail("the checkpoint has them"))
    assert train(job).weights_hash == done.weights_hash
    assert len([row for row in RunDirectory(job.run).rows() if row["kind"] == "dataset"]) == 1


@pytest.mark.parametrize("name", ["metadata.json", "state/learner/iterators/train/parameters.json"])
def test_a_damaged_latest_checkpoint_is_named_with_its_remedy(make_job, name):
    job = make_job()
    wanted = train(job).weights_hash
    latest = CheckpointStore(Path(job.run) / "checkpoints").latest()
    (Path(job.run) / "result.json").unlink()
    (latest / name).write_bytes((latest / name).read_bytes()[:100])
    with pytest.raises(CheckpointError, match=rf"latest checkpoint: got {latest}.*; remove {latest} to go on from"):
        train(job)
    shutil.rmtree(latest)
    assert train(job).weights_hash == wanted


@pytest.mark.parametrize("change", ["statistics", "rows"])
def test_what_a_checkpoint_says_of_other_data_is_refused_by_its_name(make_job, change):
    job = make_job()
    path = CheckpointStore(train(job).run / "checkpoints").latest()
    (Path(job.run) / "result.json").unlink()
    state, metadata = load_checkpoint(path)
    if change == "rows":
        state["learner"]["iterators"]["train"]["parameters"]["block_rows"] = [1]
    else:
        metadata["normalize"]["default_module"] |= {"mean": [0.0] * 9, "std": [1.0] * 9}
    save_checkpoint(path, state, metadata)
    with pytest.raises(CheckpointError, match=r"checkpoint.*: got metadata that describe no module"):
        train(job)


def test_a_start_that_opened_other_rows_than_the_run_began_with_is_told_so(make_job, tmp_path, feed_dataset):
    data = shutil.copytree(feed_dataset, tmp_path / "data.zarr")
    job = make_job(dataset=str(data))
    make_group = training._make_group

    # The other start comes first to its checkpoint, of rows that this one has not.
    patch = pytest.MonkeyPatch()

    def begun_by_another(*arguments):
        patch.undo()
        with DatasetWriter(data, append=True) as writer, OfflineDataset.open(feed_dataset) as source:
            for episode in source.episodes(stop=2):
                writer.add_episode(replace(episode, id=-1))
            writer.finish()
        done = train(job)
        back_to_the_first_checkpoint(Path(done.run))
        return make_group(*arguments)

    patch.setattr(training, "_make_group", begun_by_another)
    with pytest.raises(RunStateError, match="a start by another process meanwhile; run the same command again"):
        train(job)
    assert train(job).num_steps == 12
    facts = json.loads((Path(job.run) / "metrics.jsonl").read_text().splitlines()[0])
    assert facts["num_episodes"] == 42
