"""Runs of other processes, followed and controlled through the scheduler."""

import json
import subprocess
import threading
from contextlib import contextmanager

import pytest
import yaml
from distributed import Client, LocalCluster
from run_commands import NUM_STEPS, TIMEOUT_SECONDS, command, run_to_end, wait_for, write_job
from tls_files import write_tls_files

from dask_rl import attach, train
from dask_rl.pipeline.dashboard import CONTROL_TOPIC, TOPIC
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.live.background import stop_all
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.storage.checkpoints.store import load_metadata
from dask_rl.storage.errors import ConfigError, RunStateError, WaitTimeoutError

pytestmark = pytest.mark.service

SECONDS = 120
ENDLESS = 10**9


@pytest.fixture
def make_job(continuous_dataset, tmp_path):
    def make(name="run", num_learners=0, **settings):
        learners = {
            "num_learners": num_learners,
            "compile": "off",
            "num_threads_per_learner": 1,
            "workers_timeout_seconds": 2,
        }
        job = {
            "dataset": str(continuous_dataset),
            "algorithm": {"name": "bc", "hidden_sizes": [8]},
            "num_steps": ENDLESS,
            "batch_size": 16,
            "learners": learners,
            "run": str(tmp_path / name),
            **settings,
        }
        return parse_job(yaml.safe_dump(job))

    return make


@pytest.fixture
def start(make_job):
    """Start a run in the background; those that are left are stopped after the test."""
    yield lambda client, *name, **settings: train(make_job(*name, **settings), client=client, background=True)
    stop_all()


@contextmanager
def ending(process):
    try:
        yield
    finally:
        process.kill()
        process.wait(SECONDS)


@pytest.mark.slow
def test_a_command_is_paused_saved_resumed_and_stopped_from_another_process_and_resumes_to_the_same_bits(
    tmp_path, continuous_dataset, undisturbed_hash, cluster_client
):
    address = cluster_client.scheduler.address
    job = write_job(tmp_path, continuous_dataset, 2, cluster={"kind": "address", "address": address}, checkpoint={})
    pipe = subprocess.PIPE
    process = subprocess.Popen(command(job), stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    with ending(process), attach(address) as runs:
        wait_for(lambda: len(runs.refresh()) or process.poll() is not None, "the run")
        assert process.poll() is None, process.communicate()[1]
        run = runs["run"]
        paused = run.pause(SECONDS)
        assert (run.status, run.step, run.num_steps) == ("paused", paused, NUM_STEPS)
        assert f"paused at step {paused} of {NUM_STEPS}" in repr(runs)
        assert f"<td>paused</td><td>{paused} of {NUM_STEPS}</td>" in runs._repr_html_()
        path = run.checkpoint(SECONDS)
        assert path == tmp_path / f"run/checkpoints/step-{paused:012d}"
        assert load_metadata(path)["step"] == paused == run.step
        assert run.policy(timeout_seconds=SECONDS).action_space.shape == (2,)
        assert run.resume(SECONDS) == paused
        wait_for(lambda: run.step > paused, "a step")
        assert run.stop(SECONDS) == "interrupted"
        stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 3, stderr
        stopped = json.loads(stdout)["num_steps"]
        assert paused < stopped == run.step < NUM_STEPS
        assert run.metrics()["step"].tolist() == [row["step"] for row in RunDirectory(tmp_path / "run").rows("train")]
        assert len(runs.refresh()) == 0
        assert run.result().interrupted
        assert json.loads(stdout)["weights_hash"] == run.result().weights_hash
    assert run_to_end(job)["weights_hash"] == undisturbed_hash(2)


def test_several_runs_share_a_client_and_one_too_many_is_refused(start, cluster_client, make_job, tmp_path):
    runs = [start(cluster_client, name, num_learners=1) for name in ("a", "b")]
    assert [run.pause(SECONDS) >= 0 for run in runs] == [True, True]
    crowded = start(cluster_client, "c", num_learners=1)
    with pytest.raises(ConfigError, match=r"got 0 without a learner of another run or group; allowed: at least 1"):
        crowded.result(SECONDS)
    for run in runs:
        run.resume()
    assert [run.stop(SECONDS) for run in runs] == ["interrupted"] * 2
    again = start(cluster_client, "c", num_learners=1)
    assert again.checkpoint(SECONDS).parent.parent == tmp_path / "c"


def test_runs_of_one_client_are_listed_and_told_apart(start, cluster_client, tmp_path):
    here = [start(cluster_client, name) for name in ("a", "b/a", "<i>")]
    for run in here:
        run.pause(SECONDS)
    with attach(cluster_client) as runs:
        assert {run.path for run in runs} == {run.path for run in here}
        assert runs["<i>"].pause(SECONDS) == here[2].step
        assert "&lt;i&gt;" in runs._repr_html_()
        assert "<i>" not in runs._repr_html_()
        with pytest.raises(ConfigError, match="got 'a', the name of 2 live runs; allowed: "):
            runs["a"]
        with pytest.raises(ConfigError, match="got 'z', the name of 0 live runs"):
            runs["z"]
        assert [run.path for run in runs[:2]] == [runs[0].path, runs[1].path]
        assert runs["<i>"].stop(SECONDS) == "interrupted"
        assert [run.status for run in here] == ["paused", "paused", "interrupted"]
        assert len(runs.refresh()) == 2
    assert cluster_client.status == "running"


def test_a_complete_run_has_its_result_here_too(start, cluster_client):
    here = start(cluster_client, num_steps=60)
    here.pause(SECONDS)
    [run] = attach(cluster_client)
    run.resume()
    run.progress()
    assert run.result(SECONDS) == here.result(SECONDS)
    assert run.plot().axes[0].get_xlabel() == "gradient steps"


def test_an_interrupted_run_has_its_result_here_too_until_it_goes_on(start, cluster_client):
    settings = {"num_steps": 50_000, "checkpoint": {"keep_last": 1, "keep_best": False}}
    here = start(cluster_client, **settings)
    here.pause(SECONDS)
    [run] = attach(cluster_client)
    run.resume()
    wait_for(lambda: run.step > 0, "a step")
    assert run.stop(SECONDS) == "interrupted"
    result = run.result(SECONDS)
    assert result.interrupted
    assert result == here.result(SECONDS)
    again = start(None, **settings)  # of which the scheduler does not hear
    wait_for(lambda: again.step > result.num_steps, "a step more")
    again.stop(SECONDS)
    with pytest.raises(RunStateError, match=r"result of run run: got no checkpoint of step .* it went on since"):
        run.result(SECONDS)


def test_waits_for_a_run_of_another_process_are_bounded(start, cluster_client):
    here = start(cluster_client)
    here.pause(SECONDS)
    [run] = attach(cluster_client)
    with pytest.raises(WaitTimeoutError, match=r"end of run run: got none in 0\.1 s; it is paused at step"):
        run.wait(0.1)
    run._link._run_id = "another"
    with pytest.raises(RunStateError, match="got no answer to pause, and it is lost at step 0"):
        run.pause(SECONDS)


def test_a_run_that_began_before_the_scheduler_had_the_page_describes_itself(start, make_job):
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run_on_scheduler(lambda dask_scheduler: dask_scheduler._broker._topics.clear())
        here = start(client)
        step = here.pause(SECONDS)
        client.run_on_scheduler(lambda dask_scheduler: dask_scheduler._broker.truncate(TOPIC))
        here.resume()
        wait_for(lambda: here.step > step, "a step more")
        [run] = attach(client)
        assert (run.name, run.path, run.num_steps) == ("run", here.path, ENDLESS)
        here.pause(SECONDS)
        steps = here.metrics()["step"].tolist()
        wait_for(lambda: run.metrics()["step"].tolist() == steps, "the scheduler to have heard of all rows")
        here.stop(SECONDS)


def test_what_strangers_say_on_the_topics_does_no_harm(start, cluster_client, tmp_path):
    here = start(cluster_client)
    step = here.pause(SECONDS)
    runs = attach(cluster_client)
    run, run_id = runs[0], runs[0]._link._run_id
    for message in ("text", None, 7, {}, {"run_id": run_id}, {"run_id": run_id, "request": 1, "action": "stop"}):
        cluster_client.log_event(CONTROL_TOPIC, message)
        cluster_client.log_event(TOPIC, message)
    cluster_client.log_event(CONTROL_TOPIC, {"run_id": run_id, "request": "x", "action": "__class__"})
    assert (run.pause(SECONDS), run.status) == (step, "paused")
    asked = threading.Event()

    def answer_for_it(event):
        if event[1].get("action") == "checkpoint":
            forged = {"kind": "answer", "run_id": run_id, "request": event[1]["request"], "value": str(tmp_path)}
            stranger.loop.add_callback(stranger.scheduler.log_event, topic=TOPIC, msg=forged)
            asked.set()

    with Client(cluster_client.scheduler.address, set_as_default=False) as stranger:
        stranger.subscribe_topic(CONTROL_TOPIC, answer_for_it)
        link = run._link
        link._scheduler._publish = lambda message: answer_for_it((0, message))  # before the run can
        with pytest.raises(
            RunStateError, match=r"checkpoint of run run: got .*; allowed: a directory in .*checkpoints"
        ):
            run.checkpoint(SECONDS)
        assert asked.is_set()


def test_where_no_scheduler_is_one_line_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"cluster\.address: got tcp://127\.0\.0\.1:9, where no scheduler answers"):
        attach("tcp://127.0.0.1:9", timeout_seconds=1)
    with pytest.raises(ConfigError, match="start `dask scheduler --scheduler-file FILE` first"):
        attach(tmp_path / "scheduler.json")


def test_what_is_no_address_of_a_scheduler_is_told_from_one(start, cluster_client, tmp_path):
    """A run says where it is to be found, and so does its handle elsewhere."""
    run = start(cluster_client)
    wait_for(lambda: run.address == cluster_client.scheduler.address, "the run to know its scheduler")
    with attach(run.address.removeprefix("tcp://")) as runs:
        assert runs[0].address == run.address
    with pytest.raises(ConfigError, match=r"got http.*/learners, the address of a dashboard; .* tcp://"):
        attach("http://127.0.0.1:8787/learners")
    with pytest.raises(ConfigError, match=r"a directory; .*`address`"):
        attach(tmp_path)


@pytest.mark.slow
def test_under_tls_only_those_with_a_certificate_are_let_in(start, tmp_path):
    files = write_tls_files(tmp_path / "tls")
    with open_cluster(ClusterConfig(security=files), set_as_default=False) as client:
        here = start(client)
        here.pause(SECONDS)
        address = client.scheduler.address
        assert address.startswith("tls://")
        with attach(address, security=files) as runs:
            assert runs["run"].stop(SECONDS) == here.wait(SECONDS) == "interrupted"
        stranger = write_tls_files(tmp_path / "stranger")
        with pytest.raises(ConfigError, match="where no scheduler answers"):
            attach(address, security=stranger, timeout_seconds=5)
