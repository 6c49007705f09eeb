"""What a learner group may leave behind: processes, threads, sockets and Dask's tasks, here and in the workers."""

import gc
import os
import threading
import time
from collections import Counter
from typing import Any

import psutil
from distributed import Client

from dask_rl.learners.actor import LearnerActor
from dask_rl.learners.learner import Learner

_WAIT_SECONDS = 20.0
_LISTENING = psutil.CONN_LISTEN


class Leftovers:
    """Compares what there is with what there was when this was made; warm workers up before.

    Workers that died in between were replaced: they are compared with what any worker had.
    """

    def __init__(self, client: Client | None) -> None:
        self._client = client
        gc.collect()
        self._known_ports = _listening_ports()
        self._sockets = set(_sockets(os.getpid()))
        self._threads = set(threading.enumerate())
        self._native = native_threads(os.getpid())
        self._num_children = len(_children())
        self._dask = self._ask_dask()
        self._worker_threads: Counter[str] = Counter()
        for _, threads in self._ask_workers_for_threads():
            self._worker_threads |= threads

    def now(self) -> dict[str, Any]:
        """Return what is there that was not, by kind; empty where nothing is."""
        gc.collect()
        ports = self._known_ports | self._dask_ports()
        found: dict[str, Any] = {
            "children": max(0, len(_children()) - self._num_children),
            "threads": sorted(
                thread.name for thread in set(threading.enumerate()) - self._threads if not _is_of_dask(thread.name)
            ),
            "native threads": sorted((_learner_threads(os.getpid()) - _only_learners(self._native)).elements()),
            "sockets": [s for s in _sockets(os.getpid()) if s not in self._sockets and not _is_known(s, ports)],
        }
        for kind, things in self._ask_dask().items():
            found[kind] = sorted(set(things) - set(self._dask.get(kind, ())))
        for pid, threads in self._ask_workers_for_threads():
            found[f"threads of {pid}"] = sorted((threads - self._worker_threads).elements())
            found[f"sockets of {pid}"] = [s for s in _sockets(pid) if not _is_known(s, ports)]
            found[f"children of {pid}"] = [child.pid for child in psutil.Process(pid).children(recursive=True)]
        return {kind: things for kind, things in found.items() if things}

    def assert_none(self, seconds: float = _WAIT_SECONDS) -> None:
        """Wait until nothing is left, at most so long."""
        deadline = time.monotonic() + seconds
        while (found := self.now()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not found, found

    def _ask_workers_for_threads(self) -> list[tuple[int, Counter[str]]]:
        return [] if self._client is None else list(self._client.run(_threads_of_worker).values())

    def _ask_dask(self) -> dict[str, list[str]]:
        if self._client is None:
            return {}
        found = dict(self._client.run_on_scheduler(_look_at_scheduler))
        found["futures"] = [str(key) for key in self._client.futures]
        for address, (_, kinds) in self._client.run(_look_at_worker).items():
            found |= {f"{kind} of {address}": things for kind, things in kinds.items()}
        return found

    def _dask_ports(self) -> set[int]:
        if self._client is None:
            return set()
        info = self._client.scheduler_info(n_workers=-1)
        addresses = [info["address"], *info["workers"]]
        addresses += [worker["nanny"] for worker in info["workers"].values() if worker["nanny"]]
        ports = {int(address.rsplit(":", 1)[1]) for address in addresses}
        services = [info["services"], *(worker["services"] for worker in info["workers"].values())]
        return ports | {int(port) for each in services for port in each.values()}


def native_threads(pid: int) -> Counter[str]:
    """Count a process's threads by name, those of C++ too."""
    names: Counter[str] = Counter()
    for thread in psutil.Process(pid).threads():
        try:
            with open(f"/proc/{pid}/task/{thread.id}/comm") as file:
                names[file.read().strip()] += 1
        except FileNotFoundError:  # it has ended meanwhile
            continue
    return names


def _only_learners(threads: Counter[str]) -> Counter[str]:
    return Counter({name: count for name, count in threads.items() if name.startswith(("gloo", "pt_"))})


def _learner_threads(pid: int) -> Counter[str]:
    return _only_learners(native_threads(pid))


def _is_of_dask(name: str) -> bool:
    """Tell the threads that watch a worker's process, of which a new worker has new ones, and Dask's pools."""
    return "Dask-" in name or name.startswith(("AsyncProcess", "QueueFeederThread", "TCP-Executor"))


def _children() -> list[psutil.Process]:
    return [c for c in psutil.Process().children(recursive=True) if c.is_running() and c.status() != "zombie"]


def _sockets(pid: int) -> list[tuple[int, int, str]]:
    """Local port, remote port (0: none) and status of each socket."""
    return [
        (c.laddr.port if c.laddr else 0, c.raddr.port if c.raddr else 0, c.status)
        for c in psutil.Process(pid).net_connections("inet")
    ]


def _is_known(connection: tuple[int, int, str], ports: set[int]) -> bool:
    local, remote, _ = connection
    return local in ports or remote in ports


def _listening_ports() -> set[int]:
    pids = [os.getpid(), *(child.pid for child in _children())]
    return {local for pid in pids for local, _, status in _sockets(pid) if status == _LISTENING}


def _look_at_scheduler(dask_scheduler: Any) -> dict[str, list[str]]:
    return {
        "tasks": [str(key) for key in dask_scheduler.tasks],
        "actors": [str(key) for worker in dask_scheduler.workers.values() for key in map(_key, worker.actors)],
    }


def _key(task: Any) -> str:
    return str(task.key)


def _threads_of_worker() -> tuple[int, Counter[str]]:
    """Count Python's threads by name, but those of Dask's pools, which grow as need be; and all others by theirs."""
    names = [thread.name for thread in threading.enumerate()]
    threads = native_threads(os.getpid())
    threads["python3"] -= len(names)  # what a thread of C++ is called that nobody named
    threads.update(f"Python's {name}" for name in names if not _is_of_dask(name))
    return os.getpid(), threads


def _look_at_worker(dask_worker: Any) -> tuple[int, dict[str, list[str]]]:
    gc.collect()
    kinds = {type(each) for each in gc.get_objects()}  # of isinstance some objects of torch's warn
    learners = [kind.__name__ for kind in kinds if {Learner, LearnerActor} & set(kind.__mro__)]
    return os.getpid(), {
        "actors": [str(key) for key in dask_worker.state.actors],
        "tasks": [str(key) for key in dask_worker.state.tasks],
        "data": [str(key) for key in dask_worker.data],
        "learners": learners,
    }
