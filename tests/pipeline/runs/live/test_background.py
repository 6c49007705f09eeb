"""Runs in a thread of this process, without a cluster: their handle, their errors, their end."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure

from dask_rl import collect, train
from dask_rl.pipeline.rollouts.collect import CollectConfig
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.live.background import stop_all
from dask_rl.pipeline.runs.live.live_progress import show_progress
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.storage.checkpoints.store import load_metadata
from dask_rl.storage.errors import CheckpointError, ConfigError, RunStateError, WaitTimeoutError

pytestmark = pytest.mark.service

SECONDS = 120
ENDLESS = 10**9


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "cartpole.zarr"
    collect(CollectConfig(environment="CartPole-v1", num_episodes=5), path).close()
    return path


@pytest.fixture
def make_job(cartpole, tmp_path):
    def make(**settings):
        job = {
            "dataset": str(cartpole),
            "algorithm": {"name": "bc", "hidden_sizes": [8]},
            "num_steps": 100,
            "batch_size": 16,
            "learners": {"compile": "off", "num_threads_per_learner": 1},
            "evaluation": {"environment": "CartPole-v1", "num_episodes": 2, "every_steps": 50},
            "run": str(tmp_path / "run"),
            **settings,
        }
        return parse_job(yaml.safe_dump(job))

    return make


@pytest.fixture
def start(make_job):
    """Start a run in the background; those that are left are stopped after the test."""
    yield lambda **settings: train(make_job(**settings), background=True)
    stop_all()


def test_it_ends_as_in_the_foreground_whatever_it_was_asked_meanwhile(make_job, start, tmp_path):
    expected = train(make_job(run=str(tmp_path / "foreground")))
    run = start()
    step = run.pause(SECONDS)
    assert (run.status, run.step) == ("paused", step)
    path = run.checkpoint(SECONDS)
    assert path.parent == tmp_path / "run/checkpoints"
    assert load_metadata(path)["step"] == step
    assert run.evaluate(3, timeout_seconds=SECONDS).num_episodes == 3
    assert run.pause(SECONDS) == run.step == step
    assert run.resume(SECONDS) == step
    result = run.result(SECONDS)
    assert result.weights_hash == expected.weights_hash
    assert (run.status, run.step, run.num_steps, run.name) == ("complete", 100, 100, "run")
    assert run.return_mean == expected.evaluation["return_mean"]
    assert train(make_job()).weights_hash == expected.weights_hash  # all is let go of


def test_stopped_it_resumes_to_the_same_bits(make_job, start, tmp_path):
    expected = train(make_job(run=str(tmp_path / "whole")))
    run = start()
    run.pause(SECONDS)
    assert run.stop(SECONDS) == "interrupted"
    stopped = run.result()
    assert (stopped.interrupted, stopped.num_steps) == (True, run.step)
    assert run.checkpoint() == tmp_path / f"run/checkpoints/step-{run.step:012d}"
    assert run.stop() == "interrupted"
    with pytest.raises(RunStateError, match="got pause, and it is interrupted"):
        run.pause()
    assert start().result(SECONDS).weights_hash == expected.weights_hash


def test_a_second_run_on_its_directory_is_refused_at_once_and_so_is_another_job(make_job, start):
    run = start(num_steps=ENDLESS)
    run.checkpoint(SECONDS)
    with pytest.raises(RunStateError, match=f"another job is at work .pid {os.getpid()} "):
        train(make_job(num_steps=ENDLESS), background=True)
    run.stop(SECONDS)
    with pytest.raises(ConfigError, match="seed: 0 → 1"):
        train(make_job(num_steps=ENDLESS, seed=1), background=True)


def test_an_error_is_said_at_once_and_raised_for_whoever_asks(make_job, start, capsys):
    run = start(dataset="missing.zarr")
    assert run.wait(SECONDS) == "failed"
    with pytest.raises(ValueError, match=r"missing\.zarr"):
        run.result()
    with pytest.raises(RunStateError, match="got pause, and it is failed at step 0"):
        run.pause()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        run.policy()
    said = capsys.readouterr().err
    assert said.startswith("dask-rl: run run failed at step 0 of 100 (")
    assert said.count("\n") == 1
    assert "missing.zarr" in repr(run)


def test_waits_are_bounded_and_say_what_the_run_does(start):
    run = start(num_steps=ENDLESS)
    run.pause(SECONDS)
    with pytest.raises(WaitTimeoutError, match=r"end of run run: got none in 0\.01 s; it is paused at step \d+ of"):
        run.wait(0.01)
    assert run.status == "paused"


def test_a_handle_knows_the_numbers(start):
    run = start()
    run.wait(SECONDS)
    rows = RunDirectory(run.path).rows("train")
    assert run.address is None  # it has no cluster
    with pytest.raises(ConfigError, match=r"kind: got 'eval'; allowed: train, evaluation, event, dataset"):
        run.metrics("eval")
    metrics = run.metrics()
    assert metrics["step"].tolist() == [row["step"] for row in rows] == [25, 50, 75, 100]
    assert metrics["total_loss"].tolist() == [row["total_loss"] for row in rows]
    assert run.metrics("evaluation")["return_mean"].iloc[-1] == run.return_mean
    figure = run.plot()
    assert isinstance(figure, Figure)
    losses, returns = figure.axes
    line = next(line for line in losses.lines if line.get_label() == "total_loss")
    assert line.get_ydata().tolist() == metrics["total_loss"].tolist()
    assert [axes.get_xlabel() for axes in figure.axes] == ["gradient steps"] * 2
    assert (losses.get_ylabel(), returns.get_ylabel()) == ("loss", "mean return (CartPole-v1)")
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_its_policy_plays(start):
    run = start()
    run.wait(SECONDS)
    policy = run.policy()
    environment = gymnasium.make("CartPole-v1")
    observation, _ = environment.reset(seed=0)
    for _ in range(3):
        observation, reward, *_ = environment.step(policy(observation))
        assert reward == 1
    batch = np.stack([observation] * 2)
    assert policy(batch).shape == (2,)
    assert policy(batch)[0] == policy(observation)
    environment.close()


def test_it_shows_itself_without_running_what_it_is_called(start, tmp_path):
    run = start(run=str(tmp_path / "<b>&"), num_steps=ENDLESS)
    step = run.pause(SECONDS)
    assert repr(run).startswith(f"LiveRun('<b>&', paused at step {step} of {ENDLESS}")
    result = run.result if run.stop(SECONDS) == "interrupted" else None
    for shown in (run._repr_html_(), result()._repr_html_()):
        assert "&lt;b&gt;&amp;" in shown
        assert "<b>" not in shown


def test_progress_goes_to_the_end_in_lines_where_there_is_no_terminal(start, capsys):
    run = start()
    run.progress()
    assert run.status == "complete"
    assert "run run: complete at step 100 of 100" in capsys.readouterr().err.splitlines()


def test_what_befell_its_learners_is_shown(start, capsys):
    run = start()
    run.wait(SECONDS)
    link, states = run._link, []

    class Eventful:
        def __getattr__(self, name):
            return getattr(link, name)

        def look(self):
            states.append(link.look() if not states else replace(link.look(), event="learner 1 was lost"))
            return states[-1]

    show_progress(Eventful())
    assert "run run: learner 1 was lost\n" in capsys.readouterr().err


SCRIPT = """
import distributed, sys, threading, traceback
from dask_rl import load_job, train

def tell_when_it_waits():
    main = threading.main_thread().ident
    while "wait_for_end" not in [frame.name for frame in traceback.extract_stack(sys._current_frames()[main])]:
        threading.Event().wait(0.01)
    print("waiting", flush=True)

if __name__ == "__main__":
    run = train(load_job(sys.argv[1]), background=True)
    run.checkpoint()
    try:
        distributed.get_client()
    except ValueError:
        print("no client", flush=True)
    threading.Thread(target=tell_when_it_waits, daemon=True).start()
    {last}
"""


@pytest.fixture
def run_script(tmp_path, make_job):
    """Starts a script that trains, and returns its process once it waits; none of them outlives the test."""
    with ExitStack() as stack:

        def start(last, **settings):
            (tmp_path / "job.yaml").write_text(make_job(num_steps=ENDLESS, evaluation=None, **settings).to_yaml())
            (tmp_path / "script.py").write_text(SCRIPT.format(last=last))
            command = [sys.executable, "script.py", "job.yaml"]
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            process = stack.enter_context(subprocess.Popen(command, cwd=tmp_path, **streams))
            stack.callback(process.kill)
            said = [process.stdout.readline() for _ in range(2)]
            assert said == ["no client\n", "waiting\n"], process.communicate()[1]
            return process

        yield start


def test_a_ctrl_c_in_a_wait_leaves_the_run_alone_and_the_end_of_the_process_stops_it(run_script, tmp_path):
    last = """
    try:
        run.wait()
    except KeyboardInterrupt:
        run.resume()
        assert run.status == "running", run.status"""
    process = run_script(last.strip())
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    interrupted, stopping, stopped = said.splitlines()
    assert interrupted.startswith("dask-rl: the wait for its end was interrupted; run run goes on: it is running at ")
    assert interrupted.endswith("; run.stop() saves and ends it, run.wait() waits for it")
    assert stopping.startswith("dask-rl: this process ends, so run run is stopped; it is running at step ")
    step = int(stopped.removeprefix("dask-rl: run run is interrupted at step ").split()[0])
    assert (tmp_path / "run/checkpoints/latest").read_text() == f"step-{step:012d}"
    RunDirectory(tmp_path / "run").refuse_if_live()


def test_a_ctrl_c_that_nobody_catches_ends_process_and_run_with_a_checkpoint(run_script, tmp_path):
    # Also: its own cluster, whose client is nobody else's.
    learners = {"num_learners": 1, "compile": "off", "num_threads_per_learner": 1}
    process = run_script("run.wait()", learners=learners)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode in (1, -signal.SIGINT, 130), said
    assert "goes on: it is running" in said
    assert "KeyboardInterrupt" in said
    assert "this process ends, so run run is stopped" in said
    assert "run run is interrupted at step" in said
    RunDirectory(tmp_path / "run").refuse_if_live()
