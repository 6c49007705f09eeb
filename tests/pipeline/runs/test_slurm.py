"""Clusters of SLURM jobs: the scripts that are submitted, and a job that trains on them without SLURM."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise

import dask
import psutil
import pytest
import yaml
from fake_slurm import FakeSlurm
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from run_commands import run_to_end, start_and_wait_for_checkpoint, write_job

from dask_rl.learners.config import LearnersConfig
from dask_rl.learners.own_cluster import cluster_settings
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.directives import directives, quote_directive
from dask_rl.pipeline.runs.clusters.environment import as_environment, settings_environment
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.pipeline.runs.clusters.slurm import open_slurm
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.train import train
from dask_rl.storage.errors import ConfigError, DaskRLError, WaitTimeoutError

pytestmark = pytest.mark.service

SMALL = {"kind": "slurm", "memory_per_worker": "1GB", "slurm": {"interface": "lo"}}


def script_of(**slurm):
    config = ClusterConfig(**SMALL | {"slurm": {"interface": "lo", **slurm}})
    with open_slurm(config, None) as cluster:
        return cluster.job_script()


def read_directive(line):
    """The words of an option, as sbatch's own reader takes them apart."""
    words, word, quote, escaped = [], None, None, False
    for letter in line:
        if escaped:
            word, escaped = (word or "") + letter, False
        elif letter == "\\":
            escaped = True
        elif quote:
            quote, word = (None, word) if letter == quote else (quote, word + letter)
        elif letter in "\"'":
            quote, word = letter, word or ""
        elif letter == "#":
            break
        elif letter.isspace():
            words, word = [*words, word] if word is not None else words, None
        else:
            word = (word or "") + letter
    return [*words, word] if word is not None else words


@given(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1))
def test_a_value_comes_back_from_a_directive(value):
    assert read_directive(f"--job-name={quote_directive(value)} --next") == [f"--job-name={value}", "--next"]


def test_options_become_directives():
    options = {"gres": "gpu:1", "requeue": True, "mem": None, "output": "a b"}
    assert directives(options) == ["--gres=gpu:1", "--requeue", '--output="a b"']


def test_variables_set_dask_up_in_another_process_as_settings_do_here():
    """The process prints what it found: each setting, and what its nannies would put into workers' environment."""
    code = (
        "import dask, distributed.nanny as n, json, sys;"
        "env = n._get_env_variables('distributed.nanny.pre-spawn-environ');"
        "keys = json.loads(sys.argv[1]);"
        "print(json.dumps([[dask.config.get(k) for k in keys], env]))"
    )
    settings = cluster_settings(45)
    spawn = "distributed.nanny.pre-spawn-environ."
    keys = [key for key in settings if not key.startswith(spawn)]
    command = [sys.executable, "-c", code, json.dumps(keys)]
    environment = {**os.environ, **settings_environment(45)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    values, spawned = json.loads(done.stdout)
    with dask.config.set(settings):
        assert values == [dask.config.get(key) for key in keys]
    assert "distributed.scheduler.worker-ttl" in keys
    for key, value in settings.items():
        if key.startswith(spawn):
            name = key.removeprefix(spawn)
            assert environment[name] == str(value)
            assert spawned.get(name, str(value)) == str(value)
    assert as_environment({"a.b-c": [1, None], "a.d": "x"}) == {"DASK_A__B_C": "[1, None]", "DASK_A__D": "x"}


def test_the_script_asks_for_what_the_config_says(tmp_path):
    config = ClusterConfig(
        kind="slurm",
        memory_per_worker="16GiB",
        threads_per_worker=2,
        startup_timeout_seconds=90,
        slurm={
            "partition": "gpu",
            "account": "my lab",
            "walltime": "1-12",
            "cpus_per_worker": 6,
            "options": ["--qos=high", "--comment='two words'"],
            "prologue": ["module load cuda"],
            "log_directory": "/logs 100%",
            "local_directory": "/scratch/$USER dir",
            "python": "/opt/my envs/bin/python",
        },
    ).for_learners(LearnersConfig(num_learners=2, num_gpus_per_learner=1))
    with open_slurm(config, None) as cluster:
        lines = cluster.job_script().splitlines()
        assert cluster.scheduler.worker_ttl == 60
        port = int(cluster.dashboard_link.split(":")[-1].partition("/")[0])
        listening = {at.laddr.ip for at in psutil.Process().net_connections() if at.laddr and at.laddr.port == port}
        assert listening == {"127.0.0.1"}
    header = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    words = [read_directive(line) for line in header]
    assert ["-p", "gpu"] in words
    assert ["-A", "my lab"] in words
    assert ["--cpus-per-task=6"] in words
    assert ["--mem=16G"] in words
    assert ["-t", "1-12"] in words
    assert ["--gres=gpu:1"] in words
    assert ["--requeue"] in words
    assert ["--qos=high"] in words
    assert ["--comment=two words"] in words
    assert ["--output=/logs 100%%/dask-rl-worker-%j.log"] in words
    assert "module load cuda" in lines
    command = shlex.split(lines[-1])
    assert command[:3] == ["/opt/my envs/bin/python", "-m", "distributed.cli.dask_worker"]
    options = dict(pairwise(command))
    assert options["--nthreads"] == "2"
    assert options["--preload"] == "dask_rl.pipeline.runs.worker_preload"
    assert options["--resources"] == "GPU=1"
    assert options["--death-timeout"] == "90.0"
    assert options["--local-directory"] == "/scratch/$USER dir"
    assert options["--dashboard-address"] == "127.0.0.1:0"
    assert "--nanny" in command
    for name, value in settings_environment(60.0).items():
        assert f"export {name}={shlex.quote(value)}" in lines


def test_shells_accept_the_script(tmp_path):
    file = tmp_path / "worker.sh"
    file.write_text(script_of(local_directory="/a b$(touch x)`y`'z", options=["--qos=a"]))
    subprocess.run(["bash", "-n", str(file)], check=True, timeout=60)
    shellcheck = shutil.which("shellcheck", path=os.path.dirname(sys.executable))
    subprocess.run([shellcheck, "--severity=warning", str(file)], check=True, timeout=60)


def test_what_the_site_configured_stays():
    with dask.config.set({"jobqueue.slurm.job-extra-directives": ["--reservation=maint"]}):
        assert "#SBATCH --reservation=maint" in script_of()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "slurm"}, "memory_per_worker"),
        ({**SMALL, "slurm": {"partition": "a\n#SBATCH --uid=0"}}, "printable characters in one line"),
        ({**SMALL, "slurm": {"walltime": "1:00; rm"}}, "a time of SLURM's"),
        ({**SMALL, "slurm": {"options": ["rm -rf"]}}, "an option of sbatch"),
        ({**SMALL, "slurm": {"options": ["--a\nrm"]}}, "printable characters in one line"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(settings, words):
    with pytest.raises(ValidationError, match=words):
        ClusterConfig(**settings)


def test_gpus_are_counted():
    counts = {None: 0, "gpu": 1, "gpu:2": 2, "gpu:a100:4": 4, "gpu:a100": 1, "shard:3": 0, "gpu:1,gpu:2,nvme:7": 3}
    for gres, count in counts.items():
        assert ClusterConfig(slurm={"gres": gres}).slurm.num_gpus == count
    assert ClusterConfig(slurm={"gres": "gpu:v100:1"}).slurm.with_gpus(2).gres == "gpu:v100:1"


def test_without_sbatch_or_dask_jobqueue_there_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no sbatch on the PATH"), open_cluster(ClusterConfig(**SMALL)):
        pass
    slurm = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(slurm.commands))
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(ConfigError, match=r"dask-rl\[slurm\]"), open_cluster(ClusterConfig(**SMALL)):
        pass


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    fake = FakeSlurm(tmp_path / "slurm")
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    yield fake
    fake.kill_all()


def test_what_sbatch_refuses_is_one_line(slurm):
    config = ClusterConfig(**SMALL | {"slurm": {"interface": "lo", "partition": "closed"}})
    words = "sbatch: got no job: sbatch: error: invalid partition"
    with pytest.raises(DaskRLError, match=words) as caught, open_cluster(config):
        pass
    assert len(str(caught.value).splitlines()) == 1


def test_jobs_that_stay_in_the_queue_are_a_timeout_and_are_cancelled(slurm):
    (slurm.commands / "sbatch").write_text('#!/bin/sh\necho "Submitted batch job 7"\n')
    (slurm.folder / "7.pid").write_text("0")
    (slurm.commands / "scancel").write_text('#!/bin/sh\necho "$1" >> "$SLURM_FAKE/cancelled"\n')
    config = ClusterConfig(**SMALL | {"slurm": {"interface": "lo", "queue_timeout_seconds": 1}})
    words = r"got 0 after 1 s; allowed: 1, .* `squeue --me` says, raise cluster.slurm.queue_timeout_seconds"
    with pytest.raises(WaitTimeoutError, match=words), open_cluster(config):
        pass
    assert slurm.lines("cancelled") == ["7"]
    (slurm.folder / "7.pid").unlink()


def test_a_wait_in_the_queue_ends_when_it_is_told_to(slurm):
    (slurm.commands / "sbatch").write_text('#!/bin/sh\necho "Submitted batch job 7"\n')
    with pytest.raises(KeyboardInterrupt), open_cluster(ClusterConfig(**SMALL), is_stopped=lambda: True):
        pass


def test_workers_of_other_hosts_are_given_the_credentials_and_leave_none_behind(slurm, tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    with open_cluster(ClusterConfig(**SMALL, security="temporary")) as client:
        assert client.scheduler.address.startswith("tls://")
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3
        files = list(place.iterdir())
        assert len(files) == 3
        assert {file.stat().st_mode & 0o077 for file in files} == {0}
    assert list(place.iterdir()) == []
    odd = tmp_path / "a b"
    odd.mkdir()
    monkeypatch.chdir(odd)
    words = "working directory: got .* without quotes"
    with pytest.raises(ConfigError, match=words), open_cluster(ClusterConfig(**SMALL, security="temporary")):
        pass


def test_a_job_trains_on_slurm_jobs_and_leaves_none(slurm, feed_dataset, tmp_path):
    job = {
        "dataset": str(feed_dataset),
        "algorithm": {"name": "bc", "hidden_sizes": [8]},
        "num_steps": 6,
        "batch_size": 16,
        "learners": {"num_learners": 2, "compile": "off", "num_threads_per_learner": 1},
        "cluster": SMALL,
    }
    there = train(parse_job(yaml.safe_dump(job | {"run": str(tmp_path / "there")})))
    assert len(slurm.pids()) == 2
    assert sorted(slurm.lines("cancelled")) == ["1", "2"]
    processes = [psutil.Process(pid) for pid in slurm.pids() if psutil.pid_exists(pid)]
    assert psutil.wait_procs(processes, timeout=30)[1] == []
    here = train(parse_job(yaml.safe_dump(job | {"run": str(tmp_path / "here"), "cluster": {"kind": "local"}})))
    assert there.weights_hash == here.weights_hash


@pytest.mark.storm
def test_a_worker_whose_job_is_preempted_comes_back_and_the_run_ends_with_the_same_bits(slurm, feed_dataset, tmp_path):
    """The job's script begins again, as SLURM has it with --requeue; the run goes on as after any lost worker."""
    learners = {"num_learners": 2, "compile": "off", "num_threads_per_learner": 1}
    settings = {"learners": learners, "num_steps": 1500, "algorithm": {"name": "bc", "hidden_sizes": [8]}}
    job = write_job(tmp_path, feed_dataset, 2, **settings, cluster=SMALL)
    process = start_and_wait_for_checkpoint(job, 100)
    slurm.preempt(2)
    output, error = process.communicate(timeout=200)
    assert process.returncode == 0, error
    assert {"learner_lost", "rejoined"} <= {row["name"] for row in RunDirectory(tmp_path / "run").rows("event")}
    alone = write_job(tmp_path / "alone", feed_dataset, 2, **settings)
    assert json.loads(output)["weights_hash"] == run_to_end(alone)["weights_hash"]
