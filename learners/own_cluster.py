"""A Dask cluster of our own on this machine, set up for learners."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_rl.storage.errors import WaitTimeoutError, explain

from .config import LearnersConfig

CLOSE_SECONDS, KILL_SECONDS = 60.0, 30.0
"""The time that a cluster is given to close, and then once more after its workers' processes were killed."""
WORKER_TTL_SECONDS = 60.0
"""A worker that is silent for so long is given up for dead and replaced."""
DASHBOARD = "dask_rl.pipeline.dashboard"
"""The page of learners; only Dask imports it, in the process of the scheduler."""
_SETTINGS = {
    "distributed.worker.multiprocessing-method": "spawn",
    # A paused worker runs actor methods but no tasks; spilled blocks come back slowly.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    # Stacks are sampled every 10 ms by default, which learners would pay for, and kept: 50 KB a second.
    "distributed.worker.profile.enabled": False,
    # Dask's 64 KiB makes glibc map and unmap every tensor above 128 KiB: fresh pages, at each step of a learner.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 256 * 2**20,
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 32 * 2**20,
    # Threads that spin while they wait make a learner ten times slower where others use the same cores.
    "distributed.nanny.pre-spawn-environ.OMP_WAIT_POLICY": "PASSIVE",
}


class KeepLearners(SchedulerPlugin):
    """Keeps workers that hold actors out of every downscaling: adapt() and scale() may not kill a learner."""

    name = "keep-learners"
    idempotent = True

    def valid_workers_downscaling(self, scheduler: Any, workers: list[Any]) -> list[Any]:
        """Return the workers without actors."""
        return [worker for worker in workers if not living_actors(worker)]


def living_actors(worker: Any) -> list[Any]:
    """Return the actors of a worker as the scheduler knows it, also those that are only being constructed.

    Dask keeps those that were cancelled meanwhile.
    """
    return [actor for actor in worker.actors if actor.state in ("processing", "memory")]


class KeepsPlaces:
    """A cluster that keeps its workers' places for good, whatever befalls the workers; mixed into Dask's clusters.

    Some seconds after the death of a worker Dask looks whether one of that name is there, and closes its nanny where
    none is: also where the replacement died meanwhile, and its own is only just starting. It stumbles, and fails when
    it is closed, over the end of a worker of whose start it had not heard. And it waits without a limit for workers to
    end.
    """

    scheduler_info: dict[str, Any]
    workers: dict[Any, Any]

    async def _close(self) -> None:
        """Close; processes that do not end in time are killed."""
        closing = asyncio.ensure_future(super()._close())  # type: ignore[misc]
        for seconds in (CLOSE_SECONDS, KILL_SECONDS):
            done, _ = await asyncio.wait([closing], timeout=seconds)
            if done:
                return await closing
            for pid in [pid for worker in self.workers.values() if (pid := getattr(worker, "pid", None))]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        closing.cancel()
        got, fix = f"no end in {CLOSE_SECONDS + KILL_SECONDS:g} s", "end this process and its children"
        raise WaitTimeoutError(explain("closing the Dask cluster", got=got, fix=fix))

    def _update_worker_status(self, op: str, msg: Any) -> None:
        if op == "remove":
            self.scheduler_info["workers"].pop(msg, None)
        else:
            super()._update_worker_status(op, msg)  # type: ignore[misc]


def keeping_places(cluster_class: type[Any]) -> type[Any]:
    """Return one of Dask's kinds of cluster that keeps its workers' places."""
    return type(f"Learners{cluster_class.__name__}", (KeepsPlaces, cluster_class), {})


def cluster_settings(worker_ttl_seconds: float = WORKER_TTL_SECONDS) -> dict[str, Any]:
    """Return Dask's settings for a cluster whose workers run learners."""
    preload = dask.config.get("distributed.scheduler.preload", default=[])
    asked_for = [preload] if isinstance(preload, str) else list(preload)
    return _SETTINGS | {
        "distributed.scheduler.worker-ttl": f"{worker_ttl_seconds}s",
        "distributed.scheduler.preload": [*(name for name in asked_for if name != DASHBOARD), DASHBOARD],
    }


@contextmanager
def open_own_cluster(settings: LearnersConfig) -> Iterator[Client]:
    """Give a client of one worker process per learner; all is closed at the end."""
    cpus = settings.num_cpus_per_learner
    with dask.config.set(cluster_settings()):
        cluster = keeping_places(LocalCluster)(
            n_workers=settings.num_learners,
            threads_per_worker=max(1, cpus) if isinstance(cpus, int) else 1,
            processes=True,
            dashboard_address="127.0.0.1:0",
        )
    with cluster, Client(cluster) as client:
        client.register_plugin(KeepLearners())
        yield client
