"""One run of a job, by the real `jobs exec`: retries, limits, promotion, what follows, and who else may be at work."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import yaml
from job_cases import TIMEOUT_SECONDS, trainer_of, wait_for, write_small_dataset
from run_commands import has_checkpoint_beyond

from dask_rl.pipeline.jobs.child_process import StopSignals
from dask_rl.pipeline.jobs.execute import execute
from dask_rl.pipeline.jobs.history import History
from dask_rl.pipeline.jobs.home import JobsHome
from dask_rl.pipeline.jobs.reporter import Reporter
from dask_rl.pipeline.jobs.run_record import RunRecord, load_record
from dask_rl.pipeline.jobs.times import parse_time
from dask_rl.pipeline.rollouts.collect import CollectConfig, collect

pytestmark = pytest.mark.service

FIRST, SECOND, THIRD = "2027-01-01T02:00:00Z", "2027-01-02T02:00:00Z", "2027-01-03T02:00:00Z"
LONG = {"num_steps": 200_000, "checkpoint": {"every_steps": 100}}


@pytest.fixture
def run(jobs, monkeypatch):
    """Run a job here, for a time; returns its record."""
    monkeypatch.chdir(jobs.directory)
    history = History(JobsHome(jobs.home).create().database)

    def run_one(job: Path, time: str = FIRST, **known) -> RunRecord:
        with StopSignals() as stop:
            record = RunRecord(job=job.stem, time=parse_time(time), **known)
            if known:
                history.put(record)
            return execute(job, record, Reporter(history, stop), stop, echo=False)

    return run_one


def directory(jobs, time: str) -> Path:
    return jobs.base() / time.replace(":", "-")


def test_a_run_leaves_log_record_and_history_and_the_same_time_does_nothing_again(jobs, run):
    job = jobs.write()
    record = run(job)
    assert (record.status, record.exit_code, record.attempts, record.promoted) == ("complete", 0, 1, True)
    path = directory(jobs, FIRST)
    assert record.run == str(path)
    assert load_record(path) == record
    assert jobs.history() == [record]
    (content_hash,) = record.datasets.values()
    assert len(content_hash) == len(record.weights_hash) == 64
    assert os.readlink(jobs.base() / "current") == path.name
    log = (path / "log.txt").read_text()
    assert "start 1, of 3 at most" in log
    assert record.weights_hash in log
    assert run(job) == record
    assert (path / "log.txt").read_text() == log


def test_a_new_run_begins_with_the_weights_of_the_promoted_one(jobs, run):
    job = jobs.write(batch={"initialize_from": "previous"}, num_steps=40)
    first, second = run(job, FIRST), run(job, SECOND)
    assert first.weights_hash != second.weights_hash
    began_with = [
        yaml.safe_load((directory(jobs, time) / "resolved.yaml").read_text())["initial_weights"]
        for time in (FIRST, SECOND)
    ]
    assert began_with == [None, f"{directory(jobs, FIRST)}/checkpoints/step-000000000040"]
    assert os.readlink(jobs.base() / "current") == directory(jobs, SECOND).name


@pytest.mark.storm
def test_only_a_dataset_that_changed_is_learned_from_again(jobs, run, tmp_path):
    jobs.dataset = write_small_dataset(tmp_path / "own.zarr")
    job = jobs.write(batch={"when": "dataset_changed"}, num_steps=20)
    assert run(job, FIRST).status == "complete"
    second = run(job, SECOND)
    assert (second.status, second.message, second.exit_code) == ("skipped", "no dataset has changed", 0)
    assert not directory(jobs, SECOND).exists()
    assert run(job, SECOND, status="due", requested=True).status == "complete"  # jobs run-now
    shutil.rmtree(jobs.dataset)
    write_small_dataset(jobs.dataset, 1.0)
    assert run(job, THIRD).status == "complete"


@pytest.mark.storm
def test_a_policy_that_is_worse_is_not_promoted(jobs, run, tmp_path):
    """The first evaluation is set to be better than any; that of the second run is played."""
    jobs.dataset = tmp_path / "pendulum.zarr"
    collect(CollectConfig(environment="Pendulum-v1", num_episodes=1, max_episode_steps=50), jobs.dataset)
    evaluation = {"environment": "Pendulum-v1", "num_episodes": 1, "max_episode_steps": 5}
    job = jobs.write(batch={"keep_if": "better"}, num_steps=2, evaluation=evaluation)
    first = run(job, FIRST)
    assert (first.promoted, first.evaluation["environment"]) == (True, "Pendulum-v1")
    assert first.evaluation["return_mean"] < 0
    file = directory(jobs, FIRST) / "result.json"
    result = json.loads(file.read_text())
    result["evaluation"]["return_mean"] = 1e9
    file.write_text(json.dumps(result))
    second = run(job, SECOND)
    assert (second.status, second.promoted) == ("complete", False)
    assert os.readlink(jobs.base() / "current") == directory(jobs, FIRST).name
    assert second.message.endswith("after 1e+09 of 2027-01-01T02-00-00Z")


@pytest.mark.storm
def test_a_run_that_fails_is_tried_again_with_longer_waits_then_given_up(jobs, run, tmp_path):
    told = tmp_path / "told"
    code = f"import os; open({str(told)!r}, 'a').write(os.environ['DASK_RL_STATUS'] + os.environ['DASK_RL_ATTEMPTS'])"
    batch = {"max_retries": 2, "retry_wait_seconds": 0.2, "on_failure": [sys.executable, "-c", code]}
    job = jobs.write(batch=batch, dataset=str(tmp_path / "nowhere.zarr"))
    record = run(job)
    assert (record.status, record.exit_code, record.attempts) == ("failed", 1, 3)
    assert "nowhere.zarr: got no such path" in record.message
    log = (directory(jobs, FIRST) / "log.txt").read_text()
    assert "next start in 0.2 s" in log
    assert "next start in 0.4 s" in log
    assert told.read_text() == "failed3"
    assert not (jobs.base() / "current").exists()


@pytest.mark.storm
@pytest.mark.parametrize(
    ("settings", "message"),
    [({"num_steps": -1}, "num_steps: got -1"), ({"batch": {"when": "never"}}, "batch.when: got 'never'")],
)
def test_a_job_that_is_wrong_is_not_tried_again(jobs, run, settings, message):
    record = run(jobs.write(**settings))
    assert (record.status, record.exit_code) == ("failed", 2)
    assert message in record.message
    assert record.attempts < 2


@pytest.mark.storm
def test_a_killed_run_goes_on_to_the_same_bits(jobs):
    job = jobs.write(num_steps=2000)
    undisturbed = jobs.call("exec", job, "--time", FIRST)
    exec_ = jobs.start("exec", job, "--time", SECOND)
    record = jobs.at_work()
    trainer = wait_for(lambda: trainer_of(record), "the training process")
    wait_for(lambda: has_checkpoint_beyond(directory(jobs, SECOND), 20), "a checkpoint")
    trainer.kill()
    output = exec_.communicate(timeout=TIMEOUT_SECONDS)[0]
    assert exec_.returncode == 0, output
    (_, again) = jobs.history()
    assert (again.status, again.attempts) == ("complete", 2)
    assert again.weights_hash == undisturbed["weights_hash"]
    assert "failed: ended by SIGKILL; next start in 0.1 s" in output
    assert '"name": "resumed"' in (directory(jobs, SECOND) / "metrics.jsonl").read_text()


@pytest.mark.storm
def test_where_the_process_that_runs_it_is_killed_training_ends_too(jobs):
    job = jobs.write(**LONG)
    exec_ = jobs.start("exec", job, "--time", FIRST)
    trainer = wait_for(lambda: trainer_of(jobs.at_work()), "the training process")
    exec_.kill()
    exec_.wait(TIMEOUT_SECONDS)
    trainer.wait(TIMEOUT_SECONDS)


def test_sigterm_saves_and_ends_with_3_and_the_same_time_goes_on(jobs):
    job = jobs.write(num_steps=5000, checkpoint={"every_steps": 100})
    exec_ = jobs.start("exec", job, "--time", FIRST)
    jobs.at_work()
    wait_for(lambda: has_checkpoint_beyond(directory(jobs, FIRST), 100), "a checkpoint")
    exec_.terminate()
    output = exec_.communicate(timeout=TIMEOUT_SECONDS)[0]
    assert exec_.returncode == 3, output
    (record,) = jobs.history()
    assert (record.status, record.exit_code, record.attempts) == ("interrupted", 3, 1)
    again = jobs.call("exec", job, "--time", FIRST)
    assert (again["status"], again["started"]) == ("complete", record.values()["started"])
    assert '"name": "resumed"' in (directory(jobs, FIRST) / "metrics.jsonl").read_text()


@pytest.mark.storm
def test_a_run_that_takes_too_long_saves_and_stops(jobs):
    job = jobs.write(batch={"time_limit_seconds": 8, "on_failure": ["sh", "-c", "echo told $DASK_RL_STATUS"]}, **LONG)
    values = jobs.call("exec", job, "--time", FIRST, code=1)
    assert values["status"] == "timed_out"
    assert values["message"] == "it took longer than 8 s"
    assert "told timed_out" in (directory(jobs, FIRST) / "log.txt").read_text()


@pytest.mark.storm
def test_one_run_of_a_job_at_a_time(jobs):
    job = jobs.write(**LONG)
    first = jobs.start("exec", job, "--time", FIRST)
    running = jobs.at_work()
    values = jobs.call("exec", job, "--time", SECOND)
    assert (values["status"], values["exit_code"]) == ("skipped", 0)
    assert values["message"] == f"the run of {FIRST} is at work (pid {running.pid} on {running.host})"
    assert jobs.call("exec", job, "--time", FIRST)["status"] == "skipped"  # the very same run
    resumed = jobs.call("exec", job, "--resume", "--quiet")  # as a crontab has it
    assert (resumed["status"], resumed["exit_code"], resumed["time"]) == ("skipped", 0, FIRST)
    assert [record.status for record in jobs.history()] == ["running", "skipped"]
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=TIMEOUT_SECONDS)
    assert first.returncode == 3


def test_what_follows_a_run_is_told_about_it_and_its_failure_is_told(jobs, run):
    command = [
        "sh",
        "-c",
        'echo "$DASK_RL_JOB|$DASK_RL_TIME|$DASK_RL_RUN|$DASK_RL_PROMOTED|$DASK_RL_EXIT_CODE"; exit 5',
    ]
    record = run(jobs.write(batch={"on_success": command}, num_steps=2))
    assert (record.status, record.promoted) == ("complete", True)
    assert record.message.startswith("on_success failed: exit code 5: nightly|")
    log = (directory(jobs, FIRST) / "log.txt").read_text()
    assert f"nightly|{FIRST}|{directory(jobs, FIRST)}|1|0\n" in log


@pytest.mark.storm
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["/no/such/program"], "on_success failed: /no/such/program: No such file or directory"),
        (["sleep", "60"], "on_success took longer than 0.5 s"),
    ],
)
def test_what_follows_may_be_missing_or_hang(jobs, run, command, message):
    batch = {"on_success": command, "command_time_limit_seconds": 0.5}
    record = run(jobs.write(batch=batch, num_steps=2))
    assert (record.status, record.message) == ("complete", message)


@pytest.mark.storm
def test_a_current_that_is_no_link_is_not_replaced(jobs, run):
    (jobs.base() / "current").mkdir(parents=True)
    record = run(jobs.write(num_steps=2))
    assert (record.status, record.exit_code) == ("failed", 2)
    assert "current: got something that is no link" in record.message


@pytest.mark.storm
def test_modules_are_imported_that_the_job_file_names_and_none_that_a_run_does(jobs, run):
    """A run's directory may be a stranger's; the job file is the user's own."""
    (jobs.directory / "mine.py").write_text("open('imported', 'a').write('x')")
    (jobs.directory / "theirs.py").write_text("open('stolen', 'a').write('x')")
    job = jobs.write(imports=["mine"], num_steps=2)
    assert run(job).status == "complete"
    assert (jobs.directory / "imported").exists()
    path = directory(jobs, SECOND)
    path.mkdir()
    (path / "job.yaml").write_text((directory(jobs, FIRST) / "job.yaml").read_text().replace("mine", "theirs"))
    run(job, SECOND)
    assert not (jobs.directory / "stolen").exists()
