"""Starting a run: what is checked in which order, and what is left behind."""

import contextlib
import json
from pathlib import Path

import pytest
import yaml

from dask_rl.pipeline.runs import train as training
from dask_rl.pipeline.runs.evaluate import EvaluationResult
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.train import train
from dask_rl.storage.errors import ConfigError


@pytest.fixture
def make_job(feed_dataset, tmp_path):
    def make(**settings):
        job = {
            "dataset": str(feed_dataset),
            "algorithm": {"name": "bc", "hidden_sizes": [8]},
            "num_steps": 6,
            "batch_size": 16,
            "run": str(tmp_path / "run"),
            **settings,
        }
        return parse_job(yaml.safe_dump(job))

    return make


def test_progress_shows_the_loss_and_from_the_first_evaluation_on_the_return(make_job, monkeypatch):
    seen = []

    class Recorder(contextlib.AbstractContextManager):
        def __exit__(self, *error):
            pass

        def update(self, done, total=None, **values):
            seen.append((done, *values))

    monkeypatch.setattr(training, "check_environment", lambda *_: None)
    monkeypatch.setattr(training, "evaluate", lambda *_, **__: EvaluationResult("Pendulum-v1", (-1.0,), (1,), None))
    evaluation = {"environment": "Pendulum-v1", "every_steps": 2}
    train(make_job(evaluation=evaluation, num_steps=3), progress=lambda *_: Recorder())
    with_return = ("loss", "return")
    assert seen == [(2, "loss"), (2, *with_return), (3, *with_return), (3, *with_return)]


def test_where_learners_cannot_start_nothing_is_left(make_job, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ConfigError("no learners today")

    monkeypatch.setattr(training, "LearnerGroup", fail)
    with pytest.raises(ConfigError, match="no learners today"):
        train(make_job())
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_was_overtaken_by_another_job_changes_nothing(make_job, monkeypatch):
    make_group = training._make_group

    def overtaken(*arguments):
        monkeypatch.setattr(training, "_make_group", make_group)
        train(make_job(seed=1))  # another job, while this one starts its learners
        return make_group(*arguments)

    monkeypatch.setattr(training, "_make_group", overtaken)
    with pytest.raises(ConfigError, match="seed: 1 → 0"):
        train(make_job(seed=0))
    assert train(make_job(seed=1)).num_steps == 6


def test_a_complete_run_may_be_asked_for_while_another_process_asks_too(make_job):
    done = train(make_job())
    with RunDirectory(done.run).locked():
        assert train(make_job()) == done
    assert json.loads(Path(done.run, "result.json").read_text())["weights_hash"] == done.weights_hash
