"""Hiring: starts learner actors on free workers, and ends the processes of lost ones."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from distributed import CancelledError, Client, KilledWorker

from dask_rl.storage.errors import LearnerError, LearnerLostError, WaitTimeoutError, WorkersMissingError, explain

from .config import LearnersConfig
from .dask_handle import DaskHandle
from .handles import ActorHandle
from .restarts import RestartBudget
from .workers import WorkerPool, workers_of

Blueprint = Callable[[], Sequence[Any]]
"""Returns the arguments of a LearnerActor, as they are by then."""


class Hiring:
    """The workers of a cluster as places for learners."""

    def __init__(self, client: Client, settings: LearnersConfig, blueprint: Blueprint) -> None:
        self._client = client
        self._settings = settings
        self._blueprint = blueprint
        self._pool = WorkerPool(client, settings)

    def first(self) -> list[DaskHandle]:
        """Start the actors of a new group; an elastic one begins with what there is.

        Raises:
            ConfigError: too few workers.
            WaitTimeoutError, LearnerError: an actor does not come up.
        """
        settings, wanted = self._settings, max(1, self._settings.num_learners)
        found = self._pool.wait_for(wanted, (), settings.workers_timeout_seconds, shared=True)
        if len(found) < wanted and not (settings.elastic and found):
            self._pool.refuse(wanted, len(found))
        self._pool.refuse_threads(wanted)
        return self._start(found)

    def replacements(self, count: int, taken: Collection[str], budget: RestartBudget) -> list[DaskHandle]:
        """Start `count` actors in place of lost ones; an elastic group gets as many as there are workers for.

        Raises:
            WorkersMissingError: too few workers in time.
            RestartLimitError: one after the other dies while it starts.
        """
        settings = self._settings
        deadline = time.monotonic() + settings.replacement_timeout_seconds
        while True:
            found = self._pool.wait_for(count, taken, max(0.0, deadline - time.monotonic()))
            if len(found) < count and not (settings.elastic and (found or taken)):
                raise self._workers_missing(count, len(found))
            try:
                return self._start(found)
            except (LearnerLostError, WaitTimeoutError) as error:
                budget.spend(1, time.monotonic(), str(error))

    def submit(self, taken: Collection[str], count: int) -> list[DaskHandle]:
        """Begin to start up to `count` actors on workers that are free now."""
        return [self._submit(address) for address in self._pool.free(taken)[:count]]

    def keep(self, recruits: Sequence[DaskHandle]) -> list[DaskHandle]:
        """Return those whose worker is there; let the others go: Dask would wait for their workers to come back."""
        workers = workers_of(self._client)
        for recruit in recruits:
            if recruit.where not in workers:
                recruit.release()
        return [recruit for recruit in recruits if recruit.where in workers]

    def end_process(self, handle: ActorHandle) -> None:
        """Kill a lost learner's process where it is still there, and never use its worker again."""
        self._pool.give_up(handle.where, handle.pid)

    def _start(self, addresses: Sequence[str]) -> list[DaskHandle]:
        handles = [self._submit(address) for address in addresses]
        deadline = time.monotonic() + self._settings.startup_timeout_seconds
        try:
            for handle in handles:
                self.await_start(handle, deadline)
        except BaseException:
            for handle in handles:
                handle.release()
            raise
        return handles

    def _submit(self, address: str) -> DaskHandle:
        num_gpus = self._settings.num_gpus_per_learner
        return DaskHandle(self._client, address, self._blueprint(), {"GPU": num_gpus} if num_gpus else {})

    def await_start(self, handle: DaskHandle, deadline: float) -> None:
        """Wait until an actor is constructed.

        Raises:
            WaitTimeoutError: it is not there by `deadline`.
            LearnerLostError: its worker died meanwhile.
            LearnerError: the worker cannot construct it.
        """
        where, timeout = f"learner at {handle.where}, starting", self._settings.startup_timeout_seconds
        try:
            handle.start(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            fix = "look at the worker's log, or raise learners.startup_timeout_seconds"
            raise WaitTimeoutError(explain(where, got=f"no actor in {timeout:g} s", fix=fix)) from None
        except (LearnerLostError, KilledWorker) as error:
            fix = "look at the worker's log and memory, then run the same job again"
            raise LearnerLostError(explain(where, got=f"a lost worker process ({error})", fix=fix)) from None
        except (CancelledError, ImportError, OSError, RuntimeError) as error:
            got = " ".join(f"{type(error).__name__}: {error}".split())
            fix = "install the same packages on the workers and the scheduler as here, and give the workers more memory"
            raise LearnerError(explain(where, got=got, fix=fix)) from None

    def _workers_missing(self, wanted: int, found: int) -> WorkersMissingError:
        waited = f"{self._settings.replacement_timeout_seconds:g} s"
        return WorkersMissingError(
            explain(
                "learner group",
                got=f"{found} free workers of {wanted} in {waited}",
                allowed="a worker for each learner",
                fix="start more workers and run the same job again, or set learners.elastic: true",
            )
        )
