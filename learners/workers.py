"""WorkerPool: the Dask workers on which a group's learners may run."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from distributed import CancelledError, Client

from dask_rl.storage.errors import ConfigError, LearnerLostError, explain

from .config import LearnersConfig
from .dask_client import client_closed, is_closed, noticing_its_end
from .own_cluster import living_actors

_LOOK_EVERY_SECONDS = 0.1
_KILL_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
"""In which a scheduler answers a question, even a busy one."""


class Place(NamedTuple):
    """A worker process. With fixed ports, a nanny's new worker has the address of the one before."""

    address: str
    worker_id: str
    """Of this process alone, as the scheduler knows it."""


class Occupancy(NamedTuple):
    """What the scheduler knows of a worker's process and of the actors there."""

    worker_id: str
    actors: list[str]
    """Their keys, in the order in which they were sent there; one is among them before it is constructed."""


class WorkerPool:
    """Finds free worker processes, waits for them, and ends those that hang. One learner a process."""

    def __init__(self, client: Client, settings: LearnersConfig) -> None:
        self.client = client
        self.num_gpus = settings.num_gpus_per_learner
        cpus = settings.num_cpus_per_learner
        self.num_cpus = cpus if isinstance(cpus, int) else 0
        self._given_up: set[Place] = set()
        self._avoided: set[Place] = set()

    def free(self, taken: Collection[str] = (), *, shared: bool = False) -> list[Place]:
        """Return usable workers, in order of their names.

        Args:
            taken: addresses of workers to leave out.
            shared: whether to return those with a learner of another group too, last. Groups that share workers must
                not update at the same time: each would wait for the other.
        """
        workers = self._workers()
        usable = [
            address
            for address, info in workers.items()
            if info.get("resources", {}).get("GPU", 0) >= self.num_gpus
            and info["nthreads"] >= self.num_cpus
            and address not in taken
        ]
        occupancy = self.occupancy() if usable else {}
        places = [Place(address, occupancy[address].worker_id) for address in usable if address in occupancy]
        busy = {place for place in places if occupancy[place.address].actors}
        return sorted(
            (place for place in places if place not in self._given_up and (shared or place not in busy)),
            key=lambda place: (place in busy, place in self._avoided, str(workers[place.address].get("name")), place),
        )

    def occupancy(self) -> dict[str, Occupancy]:
        """Ask the scheduler for the worker processes and their actors, by address."""
        found = ask_scheduler(self.client, _occupancy)
        return {address: Occupancy(*facts) for address, facts in found.items()}

    def wait_for(self, count: int, taken: Collection[str], timeout: float, *, shared: bool = False) -> list[Place]:
        """Return `count` workers as of `free`, or as many as there are after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            free = self.free(taken, shared=shared)
            if len(free) >= count or time.monotonic() >= deadline:
                return free[:count]
            time.sleep(min(_LOOK_EVERY_SECONDS, max(0.0, deadline - time.monotonic())))

    def refuse_threads(self, num_learners: int) -> None:
        """Raise ConfigError where several learners would be threads of one process."""
        if num_learners > 1 and any(address.startswith("inproc://") for address in self._workers()):
            raise ConfigError(
                explain(
                    "learners.num_learners",
                    got=f"{num_learners}, and workers that are threads of one process",
                    allowed="worker processes: one learner a process",
                    fix="start the cluster with processes=True, or use one learner",
                )
            )

    def too_few(self, num_learners: int, num_found: int) -> ConfigError:
        """Return the error for a group that has too few workers."""
        with_gpus = f" with {self.num_gpus:g} GPU each (cluster.kind=cuda starts such)" if self.num_gpus else ""
        with_gpus += f" with {self.num_cpus} threads (learners.num_cpus_per_learner)" if self.num_cpus > 1 else ""
        return ConfigError(
            explain(
                "learners.num_learners",
                got=f"{num_learners}, and {num_found} usable workers of {len(self._workers())}",
                allowed=f"one worker process a learner{with_gpus}",
                fix="start more workers or lower learners.num_learners",
            )
        )

    def avoid(self, place: Place) -> None:
        """Choose a worker process after all others."""
        self._avoided.add(place)

    def give_up(self, place: Place, pid: int | None) -> None:
        """Never use a worker process again, and kill it if it is there: one that was stopped may wake up.

        A nanny then starts another one, which may have the same address.
        """
        if is_closed(self.client):
            raise client_closed(self.client)
        if place in self._given_up:
            return
        self._given_up.add(place)
        address = place.address
        there = self.occupancy().get(address)
        if there is None or there.worker_id != place.worker_id:
            return
        options = {"workers": [address], "nanny": True, "on_error": "ignore"}
        # Without a nanny, or out of reach, it lives on: it is not used again, and its generation is over.
        # One that has left since occupancy() was asked is a KeyError of the scheduler's.
        with contextlib.suppress(TimeoutError, OSError, ValueError, KeyError), noticing_its_end():
            # `client.run` has no time limit.
            self.client.sync(self.client._run, _kill, pid, **options, callback_timeout=_KILL_SECONDS)

    def _workers(self) -> dict[str, Any]:
        """Return what the scheduler knows of its workers by address; raise LearnerLostError where it is gone."""
        return workers_of(self.client)


def workers_of(client: Client) -> dict[str, Any]:
    """Return what the scheduler knows of its workers by address; raise LearnerLostError where it is gone."""
    # `client.scheduler_info` has no time limit.
    _ask(client, client._update_scheduler_info, n_workers=-1)
    workers: dict[str, Any] | None = client._scheduler_identity.get("workers")
    if workers is None:
        raise scheduler_lost()
    return workers


def ask_scheduler(client: Client, function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function on the scheduler, which passes itself as dask_scheduler; LearnerLostError where it is gone."""
    # `client.run_on_scheduler` has no time limit.
    return _ask(client, client._run_on_scheduler, function, **arguments)


def _ask(client: Client, question: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if client.status != "running" and not is_closed(client):  # reconnecting would bring back no actor
        raise scheduler_lost()
    try:
        if not is_closed(client):
            with noticing_its_end():
                return client.sync(question, *arguments, callback_timeout=_ANSWER_SECONDS, **options)
    except (CancelledError, KeyError, OSError, RuntimeError, ValueError) as error:
        if not is_closed(client):
            raise scheduler_lost(error) from None
    raise client_closed(client)


def scheduler_lost(error: Exception | None = None) -> LearnerLostError:
    """Return the error for a scheduler that does not answer any more."""
    got = "a lost connection"
    if isinstance(error, TimeoutError):
        got = f"no answer in {_ANSWER_SECONDS:g} s"
    elif error is not None:
        got += f" ({' '.join(str(error).split())})"
    fix = "start it again, then run the same job again: it goes on from its last checkpoint"
    return LearnerLostError(explain("Dask scheduler", got=got, fix=fix))


def is_known(key: str, dask_scheduler: Any) -> bool:
    """Tell on the scheduler whether it has heard of a future."""
    return key in dask_scheduler.tasks


def _occupancy(dask_scheduler: Any) -> dict[str, tuple[str, list[str]]]:
    found = {}
    for address, worker in dask_scheduler.workers.items():
        actors = sorted(living_actors(worker), key=lambda actor: actor.run_id)
        found[address] = worker.server_id, [str(actor.key) for actor in actors]
    return found


def _kill(pid: int | None, dask_worker: Any) -> None:
    """Kill a nanny's worker; one that never told its process number may be only the one that is there now."""
    if pid is not None or dask_worker.pid is not None:
        os.kill(pid or dask_worker.pid, signal.SIGKILL)
