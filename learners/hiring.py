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
from .workers import Occupancy, Place, WorkerPool

Blueprint = Callable[[], Sequence[Any]]
"""Returns the arguments of a LearnerActor, as they are by then."""


class _Occupied(Exception):
    """Another group's actor was on this worker first."""


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
            RestartLimitError: one worker after the other leaves while its actor starts.
        """
        settings, wanted = self._settings, max(1, self._settings.num_learners)
        budget = RestartBudget(settings.max_restarts, settings.restart_window_seconds)
        lost: LearnerLostError | None = None
        while True:
            found = self._pool.wait_for(wanted, (), settings.workers_timeout_seconds, shared=True)
            if len(found) < wanted and not (settings.elastic and found):
                raise lost or self._pool.too_few(wanted, len(found))
            self._pool.refuse_threads(wanted)
            try:
                return self._start(found)
            except LearnerLostError as error:  # others may do, or the one that a nanny starts in its place
                lost = error
                budget.spend(1, time.monotonic(), str(error))

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
                return self._start(found, alone=True)
            except _Occupied:
                continue
            except (LearnerLostError, WaitTimeoutError) as error:
                budget.spend(1, time.monotonic(), str(error))

    def submit(self, taken: Collection[str], count: int) -> list[DaskHandle]:
        """Begin to start up to `count` actors on workers that are free now."""
        return [self._submit(place) for place in self._pool.free(taken)[:count]]

    def keep(self, recruits: Sequence[DaskHandle]) -> list[DaskHandle]:
        """Return those that may still come; let the others go.

        They are those whose worker is gone, as Dask would wait for it to come back; those that take too long, whose
        worker is given up; and those on a worker that another group was faster to take.
        """
        occupancy = self._pool.occupancy() if recruits else {}
        latest = time.monotonic() - self._settings.startup_timeout_seconds
        kept = []
        for recruit in recruits:
            there = occupancy.get(recruit.where)
            is_late = not recruit.is_constructed and recruit.submitted_at < latest
            if there is not None and is_late:
                self._give_up_starting(recruit)
            if there is None or is_late or _is_taken(there, recruit):
                recruit.release()
            else:
                kept.append(recruit)
        return kept

    def is_there(self, recruit: DaskHandle) -> bool:
        """Tell whether a recruit that is constructed can be taken in; let go of it otherwise."""
        try:
            self.await_start(recruit, time.monotonic() + self._settings.startup_timeout_seconds, alone=True)
        except (LearnerError, WaitTimeoutError, _Occupied):  # others may come
            recruit.release()
            return False
        return True

    def end_process(self, handle: ActorHandle) -> None:
        """Kill a lost learner's process where it is still there, and never use it again."""
        self._pool.give_up(Place(handle.where, handle.worker_id), handle.pid)

    def _start(self, places: Sequence[Place], *, alone: bool = False) -> list[DaskHandle]:
        handles = [self._submit(place) for place in places]
        deadline = time.monotonic() + self._settings.startup_timeout_seconds
        try:
            for handle in handles:
                self.await_start(handle, deadline, alone=alone)
        except BaseException:
            for handle in handles:
                handle.release()
            raise
        return handles

    def _submit(self, place: Place) -> DaskHandle:
        num_gpus = self._settings.num_gpus_per_learner
        return DaskHandle(self._client, place, self._blueprint(), {"GPU": num_gpus} if num_gpus else {})

    def await_start(self, handle: DaskHandle, deadline: float, *, alone: bool = False) -> None:
        """Wait until an actor is constructed.

        Args:
            handle: the actor.
            deadline: until when.
            alone: whether it must not share its worker with another group's; one that takes too long costs its worker.

        Raises:
            WaitTimeoutError: it is not there by `deadline`.
            LearnerLostError: its worker died meanwhile.
            LearnerError: the worker cannot construct it.
        """
        where, timeout = f"learner at {handle.where}, starting", self._settings.startup_timeout_seconds
        try:
            handle.start(max(0.0, deadline - time.monotonic()))
            self._settle(handle, alone=alone)
        except TimeoutError:
            if alone:
                self._give_up_starting(handle)
            fix = "look at the worker's log, or raise learners.startup_timeout_seconds"
            raise WaitTimeoutError(explain(where, got=f"no actor in {timeout:g} s", fix=fix)) from None
        except (LearnerLostError, KilledWorker) as error:
            raise _lost(where, error) from None
        except (CancelledError, ImportError, OSError, RuntimeError) as error:
            if not isinstance(error, ImportError) and self._is_gone(handle):
                raise _lost(where, error) from None
            got = " ".join(f"{type(error).__name__}: {error}".split())
            fix = "install the same packages on the workers and the scheduler as here, and give the workers more memory"
            raise LearnerError(explain(where, got=got, fix=fix)) from None

    def _settle(self, handle: DaskHandle, *, alone: bool) -> None:
        """Note the process in which an actor was constructed: a nanny may have started another one meanwhile."""
        there = self._pool.occupancy().get(handle.where)
        if there is None:  # it will be missed at its first call
            return
        handle.worker_id = there.worker_id
        if alone and _is_taken(there, handle):
            raise _Occupied(handle.where)

    def _is_gone(self, handle: DaskHandle) -> bool:
        """Tell whether a worker process left before it could say what became of its actor."""
        there = self._pool.occupancy().get(handle.where)
        return there is None or there.worker_id != handle.worker_id

    def _give_up_starting(self, handle: DaskHandle) -> None:
        """Choose another worker next time; end one that hangs in the construction of this actor."""
        there = self._pool.occupancy().get(handle.where)
        if there is not None and there.actors == [handle.key]:
            self._pool.give_up(Place(handle.where, there.worker_id), handle.pid)
        elif there is not None:
            self._pool.avoid(Place(handle.where, there.worker_id))

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


def _lost(where: str, error: Exception) -> LearnerLostError:
    fix = "look at the worker's log and memory, then run the same job again"
    return LearnerLostError(explain(where, got=f"a lost worker process ({error})", fix=fix))


def _is_taken(there: Occupancy, handle: DaskHandle) -> bool:
    """Tell whether another actor was sent to a worker before this one: two would share its one thread for actors.

    Groups that look for a worker at the same time may find the same one; all of them see who was first.
    """
    return bool(there.actors) and there.actors[0] != handle.key
