"""Trackers: what TensorBoard and MLflow hold, read back with their own packages, is what metrics.jsonl holds."""

import json
import socket
import threading

import pytest
from trackers import as_float32, mlflow_points, mlflow_runs, points_of, tensorboard_events, tensorboard_points

from dask_rl.pipeline.runs import train as training
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.job_differences import job_differences
from dask_rl.pipeline.runs.loggers import config as loggers_config
from dask_rl.pipeline.runs.loggers.background import BackgroundLogger
from dask_rl.pipeline.runs.loggers.config import open_loggers
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.run_log import RunLog
from dask_rl.storage.errors import ConfigError, WaitTimeoutError

# MLflow uses what SQLAlchemy 2.1 calls deprecated.
pytestmark = [pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"), pytest.mark.service]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One MLflow database for all tests; each has an experiment of its own."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def run(tmp_path):
    with RunDirectory(tmp_path / "pendulum").locked() as directory:
        yield directory


def make_job(run, *loggers, **settings):
    job = {"dataset": "d.zarr", "algorithm": {"name": "iql"}, "num_steps": 40, "run": str(run.path)} | settings
    return parse_job(json.dumps(job | {"loggers": loggers}))


def tell(log, *steps, loss=1.0):
    for step in steps:
        losses = {"total_loss": loss / step, "policy_loss": float("nan"), "steps_per_second": 10.0 + step}
        log.append("train", step, losses)
        if step % 20 == 0:
            values = {"return_mean": -float(step), "return_standard_error": 0.5, "num_episodes": 5}
            log.append("evaluation", step, {"environment": "Pendulum-v1", "returns": [1.0]} | values)


def test_both_hold_the_curves_and_the_job(run, store):
    job = make_job(run, "tensorboard", {"name": "mlflow", "tracking_uri": store, "experiment": "both"}, seed=7)
    with RunLog(run, open_loggers(job, run)) as log:
        log.begin(-1)
        log.append("dataset", 0, {"content_hash": "abc", "num_steps": 9})
        tell(log, 10, 20, 30, 40)
        log.append("event", 40, {"name": "learner_lost", "rank": 1})
        run.result_file.write_text("{}")
    expected = points_of(run.rows())
    assert set(expected) == {
        *("train/total_loss", "train/steps_per_second", "evaluation/return_mean", "evaluation/return_standard_error")
    }
    assert tensorboard_points(run.path) == as_float32(expected)
    events = tensorboard_events(run.path)
    (event,) = events.Tensors("events/text_summary")
    assert (event.step, event.tensor_proto.string_val[0]) == (40, b"learner_lost, rank: 1")
    assert b"seed: 7" in events.Tensors("job/text_summary")[0].tensor_proto.string_val[0]
    assert events.Scalars("train/total_loss")[0].wall_time == run.rows("train")[0]["time"]

    (found,) = mlflow_runs(store, "both")
    assert mlflow_points(store, found.info.run_id) == expected
    assert (found.info.run_name, found.info.status) == ("pendulum", "FINISHED")
    assert found.data.params["seed"] == "7"
    assert found.data.params["algorithm.name"] == "iql"
    assert found.data.tags["dask_rl.content_hash"] == "abc"


def test_points_of_several_modules_bear_their_names(run, store):
    job = make_job(run, "tensorboard", {"name": "mlflow", "tracking_uri": store, "experiment": "modules"})
    with RunLog(run, open_loggers(job, run)) as log:
        log.begin(-1)
        log.append("train", 10, {"arm/total_loss": 1.0, "cart/total_loss": 2.0})
        log.append("evaluation", 10, {"module_id": "arm", "return_mean": 3.0})
    names = {"train/arm/total_loss", "train/cart/total_loss", "evaluation/arm/return_mean"}
    assert set(tensorboard_points(run.path)) == names
    (found,) = mlflow_runs(store, "modules")
    assert set(mlflow_points(store, found.info.run_id)) == names


def test_a_run_that_goes_on_has_no_point_twice_and_none_that_is_void(run, store):
    job = make_job(run, "tensorboard", {"name": "mlflow", "tracking_uri": store, "experiment": "resumed"})
    log = RunLog(run, open_loggers(job, run))
    log.begin(-1)
    tell(log, 10, 20, 30)
    log._loggers[1].close()  # MLflow has heard it all; TensorBoard's file is left as a killed process leaves it
    with RunLog(run, open_loggers(job, run)) as log:
        log.begin(20)
        assert [row["step"] for row in run.rows("train")] == [10, 20]
        tell(log, 30, 40)
    expected = points_of(run.rows())
    assert [step for step, _ in expected["train/total_loss"]] == [10, 20, 30, 40]
    assert tensorboard_points(run.path) == as_float32(expected)
    (found,) = mlflow_runs(store, "resumed")
    assert mlflow_points(store, found.info.run_id) == expected
    assert found.info.status == "KILLED"  # there is no result yet


def test_a_run_that_begins_anew_is_another_at_mlflow(run, store):
    """Before the first checkpoint the job may have changed: what was told is void."""
    job = make_job(run, "tensorboard", {"name": "mlflow", "tracking_uri": store, "experiment": "anew"})
    with RunLog(run, open_loggers(job, run)) as log:
        log.begin(-1)
        tell(log, 10)
        log.begin(-1)  # all learners were lost
        tell(log, 10, 20, loss=5.0)
    expected = points_of(run.rows())
    assert tensorboard_points(run.path) == as_float32(expected)
    first, second = mlflow_runs(store, "anew")
    assert first.info.status == "KILLED"
    assert mlflow_points(store, first.info.run_id)["train/total_loss"] == [(10, 0.1)]
    assert mlflow_points(store, second.info.run_id) == expected


def test_what_a_tracker_has_missed_comes_with_the_next_start(run, store):
    """It was added later, or was down before."""
    with RunLog(run) as log:
        log.begin(-1)
        tell(log, 10, 20)
    job = make_job(run, "tensorboard", {"name": "mlflow", "tracking_uri": store, "experiment": "late"})
    with RunLog(run, open_loggers(job, run)) as log:
        log.begin(20)
        tell(log, 30)
    expected = points_of(run.rows())
    assert tensorboard_points(run.path) == as_float32(expected)
    (found,) = mlflow_runs(store, "late")
    assert mlflow_points(store, found.info.run_id) == expected


def test_loggers_that_fail_are_events_and_cost_no_row(run):
    (run.path / "tensorboard").write_text("a file where the folder should be")
    job = make_job(run, "tensorboard", {"name": "mlflow", "tracking_uri": "nonsense://nowhere"})
    with RunLog(run, open_loggers(job, run)) as log:
        log.begin(-1)
        tell(log, 10, 20)
    assert [row["step"] for row in run.rows("train")] == [10, 20]
    failed = {row["logger"]: row["cause"] for row in run.rows("event")}
    assert set(failed) == {"tensorboard", "mlflow"}
    assert "nonsense" in failed["mlflow"]


def test_a_tracker_that_never_answers_holds_up_nothing_but_the_end_and_that_not_for_long(run, monkeypatch):
    for name, value in {"MAX_RETRIES": "1", "TIMEOUT": "2"}.items():  # by default it would go on for minutes
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", value)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait in its queue for ever
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        job = make_job(run, {"name": "mlflow", "tracking_uri": uri, "timeout_seconds": 0.5})
        with RunLog(run, open_loggers(job, run)) as log:
            log.begin(-1)
            tell(log, 10)
            assert run.rows("event") == []
    (event,) = run.rows("event")
    assert event["cause"].startswith("WaitTimeoutError: logger mlflow: got no end within 0.5 s")


def test_a_background_logger_raises_what_befell_it_at_the_next_call(run):
    class Failing:
        name = "failing"
        heard = threading.Event()

        def begin(self, rows):
            raise OSError("down")

        log = close = None

    logger = BackgroundLogger(Failing(), 5)
    logger.begin([])
    logger._thread.join(5)
    for call in (lambda: logger.log({}), logger.close):
        with pytest.raises(OSError, match="down"):
            call()


def test_a_background_logger_that_is_not_done_says_so():
    release = threading.Event()

    class Slow:
        name = "slow"

        def begin(self, rows):
            release.wait(30)

        def close(self):
            pass

    logger = BackgroundLogger(Slow(), 0.05)
    logger.begin([])
    with pytest.raises(WaitTimeoutError, match=r"logger slow: got no end within 0\.05 s"):
        logger.close()
    release.set()
    logger._thread.join(5)


@pytest.mark.parametrize(
    ("logger", "words"),
    [
        ("wandb", "loggers.0: got wandb; allowed: {name: tensorboard or mlflow}"),
        ({"nam": "mlflow"}, "loggers.0: got {'nam': 'mlflow'}"),
        ({"name": "mlflow", "experimnt": "x"}, "loggers.0.experimnt: got an unknown key"),
        ({"name": "mlflow", "timeout_seconds": 0}, "loggers.0.timeout_seconds: got 0"),
        ({"name": "mlflow", "tracking_uri": "https://me:secret@host"}, "tracking_uri: got a password"),
    ],
)
def test_wrong_loggers_are_refused(run, logger, words):
    with pytest.raises(ConfigError) as caught:
        make_job(run, logger)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_logger_is_named_once(run):
    with pytest.raises(ConfigError, match="loggers: got mlflow, mlflow; allowed: each once"):
        make_job(run, "mlflow", {"name": "mlflow", "experiment": "b"})


def test_a_package_that_is_missing_is_said_before_anything_starts(run, monkeypatch):
    monkeypatch.setattr(loggers_config, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'dask-rl\[tensorboard\]', or remove it from loggers"):
        open_loggers(make_job(run, "tensorboard"), run)


def test_loggers_survive_yaml_and_are_no_difference_between_jobs(run):
    job = make_job(run, "tensorboard", {"name": "mlflow", "experiment": "x"})
    assert parse_job(job.to_yaml()) == job
    assert job_differences(job, make_job(run)) == []
    assert job_differences(job, make_job(run, seed=3)) == ["seed: 0 → 3"]


def test_a_run_that_goes_on_takes_the_loggers_of_the_job_that_it_is_given(feed_dataset, tmp_path):
    settings = {"dataset": str(feed_dataset), "batch_size": 16, "num_steps": 4, "algorithm": {"name": "bc"}}
    settings |= {"checkpoint": {"every_steps": 2}}
    run = RunDirectory(tmp_path / "run")
    training.train(make_job(run, **settings))
    assert not (run.path / "tensorboard").exists()
    run.result_file.unlink()  # as if it had been killed just before its end
    training.train(make_job(run, "tensorboard", **settings))
    assert tensorboard_points(run.path) == as_float32(points_of(run.rows()))
