"""Clusters that we start and clusters that we join, with real processes, signals and sockets."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import dask
import psutil
import pytest
from worker_code import Counter

from dask_rl.learners import own_cluster
from dask_rl.learners.own_cluster import KeepLearners
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster, open_workers
from dask_rl.pipeline.runs.clusters.workers import wait_for_workers
from dask_rl.storage.errors import ConfigError, DaskRLError, WaitTimeoutError

DRIVER = """
import os, signal, sys
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster

def main():
    caught = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: caught.append(number))
    with open_cluster(ClusterConfig(), num_workers=2) as client:
        before = client.run(os.getpid)
        print(*before.values(), flush=True)
        sys.stdin.readline()
        assert client.run(os.getpid) == before, "workers changed"
        assert client.submit(sum, [1, 2]).result(timeout=20) == 3
        print("alive after", *caught, flush=True)
        sys.stdin.readline()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def driver(tmp_path):
    """A driver in a process group of its own, and the pids of its two workers."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,
    ) as process:
        workers = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        yield process, workers
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_process_group_reaches_the_driver_and_spares_its_workers(driver, number):
    process, workers = driver
    os.killpg(process.pid, number)
    process.stdin.write("\n")
    assert process.stdout.readline() == f"alive after {int(number)}\n"
    process.stdin.write("\n")
    assert process.wait(timeout=30) == 0
    assert psutil.wait_procs(workers, timeout=10)[1] == []


def test_workers_end_with_a_driver_that_is_killed(driver):
    process, workers = driver
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert psutil.wait_procs(workers, timeout=10)[1] == []


def test_a_local_cluster_is_set_up_for_learners_and_leaves_nothing():
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED")
    environment = [os.environ.get(name) for name in names]
    with open_cluster(ClusterConfig(worker_ttl_seconds=45), num_workers=1) as client:

        def look(dask_worker):
            memory = dask_worker.memory_manager
            fractions = [getattr(memory, f"memory_{name}_fraction") for name in ("target", "spill", "pause")]
            nthreads = dask_worker.state.nthreads
            return (
                fractions,
                nthreads,
                os.getpid(),
                os.getsid(0),
                os.environ["OMP_NUM_THREADS"],
                os.environ["OMP_WAIT_POLICY"],
            )

        (seen,) = client.run(look).values()
        assert seen[:2] == ([False, False, False], 1)
        assert seen[2] == seen[3]  # a session of its own
        assert seen[4:] == ("1", "PASSIVE")
        assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.worker_ttl) == 45
        assert client.dashboard_link.startswith("http://127.0.0.1:")
        worker = psutil.Process(seen[2])
        counter = client.submit(Counter, actor=True).result(timeout=30)
        assert counter.one().result(timeout=10) == 1
        closable = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.workers_to_close(n=1))
        assert closable == []
        del counter
    assert not worker.is_running()
    assert [os.environ.get(name) for name in names] == environment


def test_without_the_plugin_a_worker_with_an_actor_would_be_closed():
    states = [["memory"], ["processing"], [], ["forgotten"]]  # the last: cancelled while it was constructed
    workers = [SimpleNamespace(actors=[SimpleNamespace(state=state) for state in each]) for each in states]
    assert KeepLearners().valid_workers_downscaling(None, workers) == workers[2:]


def test_in_process_and_no_workers_mean_no_client():
    with open_cluster(ClusterConfig(kind="in_process")) as client, open_workers(0) as none:
        assert (client, none) == (None, None)


def test_a_port_in_use_is_one_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=rf"cluster\.dashboard_port: got {port}: Address already in use"),
            open_cluster(ClusterConfig(dashboard_port=port)),
        ):
            pass


def test_fewer_workers_than_learners_are_refused_before_anything_starts():
    with (
        pytest.raises(ConfigError, match=r"cluster\.num_workers: got 1; allowed: at least .*=2"),
        open_cluster(ClusterConfig(num_workers=1), num_workers=2),
    ):
        pass


def test_workers_that_never_come_are_a_timeout_that_says_how_many_came():
    with open_workers(1) as client:
        late = ClusterConfig(startup_timeout_seconds=0.2)
        with pytest.raises(WaitTimeoutError, match=r"got 1 after 0\.2 s; allowed: 2"):
            wait_for_workers(client, 2, late)


def test_a_running_cluster_is_joined_and_left_running_and_must_have_a_worker_per_learner():
    with open_workers(1) as client:
        place = {"kind": "address", "address": client.scheduler.address}
        with (
            pytest.raises(ConfigError, match=r"got 1 after 0\.5 s; allowed: at least 3, one per learner"),
            open_cluster(ClusterConfig(**place, startup_timeout_seconds=0.5), num_workers=3),
        ):
            pass
        with open_cluster(ClusterConfig(**place), num_workers=1) as second:
            assert second.submit(sum, [1, 2]).result(timeout=10) == 3
        assert client.submit(sum, [2, 2]).result(timeout=10) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "address", "address": "tcp://127.0.0.1:9"}, "cluster.address: got tcp://127.0.0.1:9"),
        ({"kind": "address", "address": "nonsense://x"}, "cluster.address: got nonsense://x"),
        ({"kind": "scheduler_file", "scheduler_file": "/nope.json"}, "cluster.scheduler_file: got /nope.json"),
        ({"kind": "scheduler_file", "scheduler_file": "/etc/passwd"}, "/etc/passwd: no file of a scheduler"),
    ],
)
def test_a_scheduler_that_is_not_there_is_one_line(settings, words):
    config = ClusterConfig(**settings, startup_timeout_seconds=1)
    with pytest.raises(ConfigError) as caught, open_cluster(config):
        pass
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
def test_a_worker_that_dies_or_hangs_while_it_starts_is_one_line_and_leaves_nothing(monkeypatch, number):
    monkeypatch.setenv("TEST_SIGNAL", number)
    monkeypatch.setattr("dask_rl.pipeline.runs.clusters.local.PRELOAD", "dying_preload")
    config = ClusterConfig(startup_timeout_seconds=8)
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(DaskRLError, match="local cluster: got no start") as caught, open_cluster(config):
        pass
    assert len(str(caught.value).splitlines()) == 1
    new = set(psutil.Process().children(recursive=True)) - before
    assert not [child for child in new if "spawn_main" in child.cmdline()[-2]]


def test_cuda_without_dask_cuda_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_cuda", None)
    with pytest.raises(ConfigError, match=r"dask-rl\[cuda\]"), open_cluster(ClusterConfig(kind="cuda")):
        pass


def test_dask_closes_no_nanny_whose_worker_is_only_just_starting():
    """It looks some time after a death whether a worker of that name is there: here, before one can be."""
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "100ms"}),
        open_cluster(ClusterConfig(), num_workers=1) as client,
    ):
        [pid] = client.run(os.getpid).values()
        os.kill(pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=20)
        client.wait_for_workers(1, timeout=60)
        assert len(client.cluster.workers) == 1
        assert list(client.run(os.getpid, on_error="ignore").values()) != [pid]


def test_a_worker_whose_end_dask_would_wait_for_for_ever_is_killed(monkeypatch):
    monkeypatch.setattr(own_cluster, "CLOSE_SECONDS", 1.0)
    with open_cluster(ClusterConfig(), num_workers=1) as client:
        [pid] = client.run(os.getpid).values()
        [nanny] = client.cluster.workers.values()
        close = nanny.close

        async def close_when_it_has_ended(**options):
            while psutil.pid_exists(pid):
                await asyncio.sleep(0.05)
            return await close(**options)

        nanny.close = close_when_it_has_ended
    assert not psutil.pid_exists(pid)
