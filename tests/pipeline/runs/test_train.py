"""Starting a run: what is checked in which order, and what is left behind."""

import contextlib
import json
from pathlib import Path

import pytest
import yaml

from dask_rl.learners.learner import Learner
from dask_rl.pipeline.rollouts.evaluate import EvaluationResult
from dask_rl.pipeline.runs import train as training
from dask_rl.pipeline.runs import training as running
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.train import train
from dask_rl.storage.checkpoints import files
from dask_rl.storage.checkpoints.store import CheckpointStore
from dask_rl.storage.errors import CheckpointError, ConfigError, LearnerError, RunStateError


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

        def note(self, text):
            pass

    monkeypatch.setattr(training, "check_environment", lambda *_: None)
    monkeypatch.setattr(running, "evaluate", lambda *_, **__: EvaluationResult("Pendulum-v1", (-1.0,), (1,), None))
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


@pytest.mark.parametrize("name", ["result.json", "job.yaml", "resolved.yaml"])
@pytest.mark.parametrize("damage", [b"", b"{}", b"[1", b"\x8a\x00"])
def test_a_damaged_file_of_a_run_is_named_with_a_remedy(make_job, name, damage):
    done = train(make_job())
    if name != "result.json":
        (done.run / "result.json").unlink()
    (done.run / name).write_bytes(damage)
    with pytest.raises(RunStateError, match=rf"{name}: got .*; allowed: what the run wrote there; ") as caught:
        train(make_job())
    assert len(str(caught.value).splitlines()) == 1
    if name == "result.json":
        (done.run / name).unlink()
        assert train(make_job()) == done


def test_a_run_is_not_begun_inside_a_dataset(make_job, feed_dataset):
    before = sorted(path.name for path in feed_dataset.iterdir())
    with pytest.raises(RunStateError, match="a dataset; allowed: a directory of its own"):
        train(make_job(run=str(feed_dataset)))
    assert sorted(path.name for path in feed_dataset.iterdir()) == before


def test_a_damaged_checkpoint_is_removed_and_the_run_goes_on_from_the_one_before(make_job):
    job = make_job(checkpoint={"every_steps": 3})
    done = train(job)
    (done.run / "result.json").unlink()
    latest = done.run / "checkpoints" / "step-000000000006"
    (latest / "state/learner/counters.json").write_bytes(b"{")
    with pytest.raises(CheckpointError, match=rf"latest checkpoint: got {latest}.*; remove {latest} to go on"):
        train(job)
    (latest / "metadata.json").unlink()  # a removal that was killed half-way
    assert train(job).weights_hash == done.weights_hash


def test_an_error_of_the_algorithm_saves_the_steps_before_it(make_job, monkeypatch):
    job = make_job()
    compute, wanted = Learner.compute_gradients, train(make_job(run=f"{job.run}-undisturbed")).weights_hash

    def fail_at_4(learner, *arguments):
        if learner.step == 4:
            raise ZeroDivisionError("on purpose")
        return compute(learner, *arguments)

    monkeypatch.setattr(Learner, "compute_gradients", fail_at_4)
    with pytest.raises(LearnerError, match="ZeroDivisionError: on purpose"):
        train(job)
    assert (Path(job.run) / "checkpoints/latest").read_text().strip() == f"step-{4:012d}"
    monkeypatch.setattr(Learner, "compute_gradients", compute)
    assert train(job).weights_hash == wanted


@pytest.mark.parametrize("iterators", [{}, {"train": {"step": 3}}])
def test_a_checkpoint_whose_data_are_elsewhere_than_its_weights_is_refused(make_job, iterators):
    job = make_job()
    done = train(job)
    (done.run / "result.json").unlink()
    store = CheckpointStore(done.run / "checkpoints")
    state, metadata = store.load()
    for key, changes in iterators.items():
        state["learner"]["iterators"][key] |= changes
    state["learner"]["iterators"] = {key: state["learner"]["iterators"][key] for key in iterators}
    store.save(6, state, metadata)
    with pytest.raises(CheckpointError, match=r"iterators: got .*; allowed: all at step 6; delete this"):
        train(job)


def test_a_complete_run_may_be_asked_for_while_another_process_asks_too(make_job):
    done = train(make_job())
    with RunDirectory(done.run).locked():
        assert train(make_job()) == done
    assert json.loads(Path(done.run, "result.json").read_text())["weights_hash"] == done.weights_hash


@pytest.mark.parametrize("every_steps", [None, 3])
def test_an_evaluation_that_fails_loses_no_step_and_is_made_up_for(make_job, monkeypatch, every_steps):
    calls = []

    def fail_once(*_, **__):
        calls.append(1)
        if len(calls) == 1:
            raise ConfigError("the environment crashed")
        return EvaluationResult("Pendulum-v1", (-1.0,), (1,), None)

    monkeypatch.setattr(training, "check_environment", lambda *_: None)
    monkeypatch.setattr(running, "evaluate", fail_once)
    job = make_job(evaluation={"environment": "Pendulum-v1", "every_steps": every_steps})
    with pytest.raises(ConfigError, match="crashed"):
        train(job)
    failed_at = every_steps or 6
    assert (Path(job.run) / "checkpoints/latest").read_text().strip() == f"step-{failed_at:012d}"
    result = train(job)
    rows = RunDirectory(job.run).rows()
    assert [row["step"] for row in rows if row["kind"] == "evaluation"] == ([3, 6] if every_steps else [6])
    assert [row["step"] for row in rows if row["kind"] == "event"] == [failed_at]
    assert result.evaluation["return_mean"] == -1.0
    assert training.CheckpointStore(RunDirectory(job.run).checkpoints).best() is not None


def test_a_checkpoint_is_not_moved_away_to_get_its_score(make_job, monkeypatch):
    replace = files._replace_directory

    def replace_nothing(temporary, target):
        assert not target.exists(), "a kill here would lose the only checkpoint"
        replace(temporary, target)

    monkeypatch.setattr(files, "_replace_directory", replace_nothing)
    monkeypatch.setattr(training, "check_environment", lambda *_: None)
    monkeypatch.setattr(running, "evaluate", lambda *_, **__: EvaluationResult("Pendulum-v1", (-1.0,), (1,), None))
    done = train(make_job(evaluation={"environment": "Pendulum-v1", "every_steps": 3}, checkpoint={"keep_last": 1}))
    store = CheckpointStore(done.run / "checkpoints")
    assert store.load()[1]["score"] == -1.0
    assert list(store.checkpoints()) == [6]
