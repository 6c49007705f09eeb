"""Several modules in one run on learner processes: datasets, algorithms, evaluation and resuming of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from dask_rl.learners.config import LearnerGroupConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.pipeline.runs.train import train
from dask_rl.pipeline.runs.trained_policy import load_policy
from dask_rl.pipeline.runs.training_data import open_training_data
from dask_rl.pipeline.views import cli
from dask_rl.storage.checkpoints.store import CheckpointStore, load_checkpoint

CART = {"name": "bc", "hidden_sizes": [16], "top_fraction": 0.5}
ARM = {"name": "iql", "hidden_sizes": [16], "dropout": 0.1, "normalize_observations": True}
TIMEOUT_SECONDS = 120


@pytest.fixture
def make_job(cartpole_dataset, continuous_dataset, tmp_path):
    """Settings of a job that trains both modules, or one alone."""

    def make(*module_ids: str, num_learners: int = 0, **settings) -> dict:
        paths, algorithms = {"cart": cartpole_dataset, "arm": continuous_dataset}, {"cart": CART, "arm": ARM}
        return {
            "dataset": {module_id: str(paths[module_id]) for module_id in module_ids},
            "algorithm": algorithms[module_ids[0]],
            "modules": {module_id: algorithms[module_id] for module_id in module_ids[1:]},
            "num_steps": 60,
            "batch_size": 48,
            "learners": {"num_learners": num_learners, "compile": "off", "num_threads_per_learner": 1},
            "run": str(tmp_path / f"{'-'.join(module_ids)}-{num_learners}"),
            **settings,
        }

    return make


def weights_of(job: dict, client) -> dict[str, dict[str, np.ndarray]]:
    run = train(TrainJob.model_validate(job), client=client if job["learners"]["num_learners"] else None).run
    path = CheckpointStore(run / "checkpoints").latest()
    return load_checkpoint(path, component="learner/rl_module")[0]


def flat(weights: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([weights[name].ravel() for name in sorted(weights)])


def test_each_module_learns_what_it_would_learn_alone_on_any_number_of_learners(make_job, cluster_client):
    def double(job: dict) -> dict:
        return job | {"learners": job["learners"] | {"precision": "fp64"}}

    reference: dict[str, np.ndarray] = {}
    for num_learners in (0, 1, 2):
        together = weights_of(double(make_job("cart", "arm", num_learners=num_learners)), cluster_client)
        for module_id in ("cart", "arm"):
            job = double(make_job(module_id, num_learners=num_learners))
            alone, got = flat(weights_of(job, cluster_client)[module_id]), flat(together[module_id])
            np.testing.assert_array_equal(got, alone)
            reference.setdefault(module_id, got)
            error = np.linalg.norm(got - reference[module_id]) / np.linalg.norm(reference[module_id])
            assert error <= 1e-9, (module_id, num_learners)


@pytest.mark.service
@pytest.mark.slow
def test_a_learner_that_is_killed_is_replaced_and_the_modules_end_with_the_same_bits(make_job):
    job = TrainJob.model_validate(make_job("cart", "arm", num_learners=2))
    data = open_training_data(job)
    config = LearnerGroupConfig(algorithm=job.algorithm, module_algorithms=job.modules, learners=job.learners)
    ends = []
    for disturbed in (False, True):
        with (
            open_cluster(ClusterConfig(log_level="critical"), num_workers=2) as client,
            LearnerGroup(config, module_spec=data.module_spec, client=client) as group,
        ):
            group.update_from_iterators(data.data, num_iters=20)
            if disturbed:
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
            results = group.update_from_iterators(data.data, num_iters=20)
            assert [result["all_modules"]["step"] for result in results] == [40, 40]
            assert group.get_stats()["num_restarts"] == int(disturbed)
            ends.append(group.get_weights())
    for module_id in ("cart", "arm"):
        np.testing.assert_array_equal(flat(ends[0][module_id]), flat(ends[1][module_id]))


def command(job: Path) -> list[str]:
    return [sys.executable, "-m", "dask_rl", "train", str(job), "--json"]


def run_to_end(job: Path) -> dict:
    done = subprocess.run(command(job), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kill_after(job: Path, run: Path, step: int) -> None:
    """Start a job and kill it with all its processes once it has a checkpoint of this step or a later one."""
    process = subprocess.Popen(
        command(job), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    latest, deadline = run / "checkpoints" / "latest", time.monotonic() + TIMEOUT_SECONDS
    while not (latest.exists() and int(latest.read_text().strip().removeprefix("step-")) >= step):
        if process.poll() is not None or time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(process.communicate()[1])
        os.sched_yield()
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not psutil.wait_procs(family, timeout=30)[1]


@pytest.mark.service
@pytest.mark.slow
def test_a_killed_run_resumes_with_the_same_bits_and_its_modules_are_judged_one_by_one(make_job, tmp_path, capsys):
    evaluation = {"environment": "CartPole-v1", "module_id": "cart", "num_episodes": 3, "every_steps": 150}
    settings = {"num_steps": 600, "checkpoint": {"every_steps": 50}, "evaluation": evaluation}
    hashes = []
    for name in ("undisturbed", "killed"):
        run, file = tmp_path / name, tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(make_job("cart", "arm", num_learners=2, run=str(run), **settings)))
        if name == "killed":
            kill_after(file, run, 100)
        hashes.append(run_to_end(file)["weights_hash"])
    assert hashes[0] == hashes[1]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(25, 625, 25))
    assert {(row["step"], row["module_id"]) for row in rows if row["kind"] == "evaluation"} == {
        (step, "cart") for step in (150, 300, 450, 600)
    }
    assert [row["name"] for row in rows if row["kind"] == "event"] == ["resumed"]
    judge(run, capsys)


def judge(run: Path, capsys) -> None:
    assert cli.run(["eval", str(run), "--episodes", "4", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert (evaluated["module_id"], evaluated["step"], evaluated["num_episodes"]) == ("cart", 600, 4)
    assert cli.run(["eval", str(run), "--module", "arm"]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert "observation space of the policy: got Box" in line
    assert "(5,)" in line
    assert cli.run(["eval", str(run), "--module", "leg"]) == 2
    assert capsys.readouterr().err == "error: --module: got 'leg'; allowed: arm, cart; name one of these.\n"
    assert cli.run(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    for text in ("arm: iql, cart: bc", "<th>module</th>", "<td>cart</td>", "Learning curve: arm/value_loss"):
        assert text in page
    assert load_policy(run, module_id="arm")(np.zeros((2, 5), np.float32)).shape == (2, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"modules": {"leg": {"name": "bc"}}}, "module in modules: got 'leg'; allowed: arm, cart"),
        ({"evaluation": {"environment": "CartPole-v1"}}, "evaluation.module_id: got nothing, with several modules"),
        ({"evaluation": {"environment": "CartPole-v1", "module_id": "arm"}}, "observation space of the policy"),
        ({"evaluation": {"environment": "CartPole-v1", "module_id": "leg"}}, "evaluation.module_id: got 'leg'"),
    ],
)
def test_mistakes_about_modules_are_one_line_and_leave_nothing(make_job, tmp_path, capsys, change, words):
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(make_job("cart", "arm") | change))
    assert cli.run(["train", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert {path.name for path in tmp_path.iterdir()} == {"job.yaml"}


def test_eval_asks_which_module_plays_where_the_job_does_not_say(make_job, tmp_path, capsys):
    run = train(TrainJob.model_validate(make_job("cart", "arm", num_steps=2))).run
    arguments = ["eval", str(run), "--environment", "CartPole-v1", "--episodes", "1", "--json"]
    assert cli.run(arguments) == 2
    expected = "error: --module: got nothing, with several modules; allowed: arm, cart; name one of these.\n"
    assert capsys.readouterr().err == expected
    assert cli.run([*arguments, "--module", "cart"]) == 0
    assert json.loads(capsys.readouterr().out)["module_id"] == "cart"
