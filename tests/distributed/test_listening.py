"""What listens for connections while learners train: only the addresses of their workers, and loopback."""

import contextlib
import os
import re
import socket

import psutil
import pytest
import yaml
from distributed import Client, LocalCluster
from gymnasium.spaces import Box

from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.module import RLModuleSpec
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.train import train

SPEC = RLModuleSpec(Box(-1, 1, (3,)), Box(-1, 1, (1,)))
LEARNERS = {"num_learners": 2, "compile": "off", "num_threads_per_learner": 1}


def listening(pid: int) -> set[tuple[str, int]]:
    """Address and port of each socket of a process at which strangers could knock, TCP or UDP."""
    sockets = psutil.Process(pid).net_connections("inet")
    waiting = [s for s in sockets if s.status == psutil.CONN_LISTEN or (s.type == socket.SOCK_DGRAM and not s.raddr)]
    return {(s.laddr.ip, s.laddr.port) for s in waiting}


class Opened:
    """The sockets that this process and its children opened since; other tests' clusters do not count."""

    def __init__(self) -> None:
        self._before = self._all()

    def now(self) -> dict[int, set[tuple[str, int]]]:
        return {pid: sockets - self._before.get(pid, set()) for pid, sockets in self._all().items()}

    def _all(self) -> dict[int, set[tuple[str, int]]]:
        children = psutil.Process().children(recursive=True)
        return {pid: listening(pid) for pid in (os.getpid(), *(child.pid for child in children))}


def own_addresses() -> list[str]:
    """An address of this machine beyond loopback, and IPv6's loopback, where there are such."""
    named = [address for name, many in psutil.net_if_addrs().items() if name != "lo" for address in many]
    outward = [address.address for address in named if address.family == socket.AF_INET]
    loopback = [address.address for address in psutil.net_if_addrs().get("lo", [])]
    return [*outward[:1], *(address for address in loopback if address == "::1")]


@pytest.mark.parametrize("security", [None, "temporary"])
def test_a_running_job_listens_on_loopback_only(continuous_dataset, tmp_path, security):
    opened, seen, notes = Opened(), {}, []

    class Look(contextlib.AbstractContextManager):
        def __exit__(self, *error):
            pass

        def update(self, done, total=None, **values):
            seen.update(opened.now())

        def note(self, text):
            notes.append(text)

    job = {
        "dataset": str(continuous_dataset),
        "algorithm": {"name": "bc", "hidden_sizes": [8]},
        "num_steps": 4,
        "batch_size": 16,
        "learners": LEARNERS,
        "cluster": {"kind": "local", "security": security},
        "run": str(tmp_path / "run"),
    }
    train(parse_job(yaml.safe_dump(job)), progress=lambda *_: Look())
    assert {address for sockets in seen.values() for address, _ in sockets} == {"127.0.0.1"}
    scheme = "tcp" if security is None else "tls"
    said = rf"starting 2 learners\ndashboard: http://127\.0\.0\.1:\d+/learners; attach to {scheme}://127\.0\.0\.1:\d+"
    assert re.fullmatch(said, "\n".join(notes))
    # Of Dask: the scheduler, its dashboard and two nannies here; a worker and its dashboard there.
    assert len(seen.pop(os.getpid())) == 4
    # Of ours: one for gloo on each, and on rank 0 the store.
    assert sorted(len(sockets) for sockets in seen.values() if sockets) == [3, 4]


def test_workers_of_a_groups_own_listen_on_loopback_only():
    opened = Opened()
    config = LearnerGroupConfig(algorithm={"name": "bc", "hidden_sizes": [8]}, learners=LearnersConfig(**LEARNERS))
    with LearnerGroup(config, module_spec=SPEC):
        found = set().union(*opened.now().values())
    assert {address for address, _ in found} == {"127.0.0.1"}


@pytest.mark.parametrize("host", own_addresses())
@pytest.mark.parametrize("security", [None, True], ids=["tcp", "tls"])
def test_store_and_gloo_listen_only_on_the_address_of_their_worker(host, security):
    place = f"[{host}]" if ":" in host else host
    scheme = "tls" if security else "tcp"
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host=f"{scheme}://{place}",
            security=security,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        pids = list(client.run(os.getpid).values())
        before = {pid: listening(pid) for pid in pids}
        assert all(address.startswith(f"{scheme}://{place}:") for address in client.scheduler_info()["workers"])
        config = LearnerGroupConfig(algorithm={"name": "bc", "hidden_sizes": [8]}, learners=LearnersConfig(**LEARNERS))
        with LearnerGroup(config, module_spec=SPEC, client=client):
            opened = [listening(pid) - before[pid] for pid in pids]
        assert sorted(map(len, opened)) == [1, 2]  # gloo, and the store of rank 0
        assert {address for sockets in opened for address, _ in sockets} == {host}
