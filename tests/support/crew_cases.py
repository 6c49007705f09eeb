"""Crews of actors in this process: their calls run when they are looked for, or in threads of their own."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from learner_cases import ACTIONS, OBSERVATIONS, make_batch
from learner_peers import HOST

from dask_rl.learners.actor import LearnerActor
from dask_rl.learners.batch import DEFAULT_MODULE_ID
from dask_rl.learners.calls import Membership, Outcome, pack, unpack
from dask_rl.learners.collective import Rendezvous, RendezvousStore
from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.crew import Crew
from dask_rl.learners.dispatcher import Admitted, Dispatcher
from dask_rl.learners.learner import Learner
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.errors import WorkersMissingError

SPEC = MultiRLModuleSpec({DEFAULT_MODULE_ID: RLModuleSpec(OBSERVATIONS, ACTIONS["continuous"])})


class TroubledLearner(Learner):
    """Raises what it is told to in the next request, once, and keeps the numbers of those that it carried out."""

    trouble: Exception | None = None

    def build(self) -> None:
        self.carried_out: list[int] = []
        super().build()

    def before_gradient_based_update(self, timesteps: Any, **kwargs: Any) -> None:
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            raise trouble

    def after_gradient_based_update(self, timesteps: Any, **kwargs: Any) -> None:
        assert self.open_request is not None
        self.carried_out.append(self.open_request)


class LoneActor(LearnerActor):
    """Joins alone: ranks that take turns on one thread cannot wait for each other."""

    def _open_store(self, generation: int) -> Rendezvous:
        return Rendezvous(HOST, 0, generation)

    def _join(self, membership: Membership) -> None:
        super()._join(replace(membership, size=1, rendezvous=None))


class MeetingActor(LearnerActor):
    """Meets the others of this process."""

    def _open_store(self, generation: int) -> Rendezvous:
        self._store = RendezvousStore(HOST, generation, 20)
        return self._store.rendezvous


class TurnCall:
    """A call that is carried out once it has been looked for `patience` times; those before it are then, too."""

    def __init__(self, handle: "TurnHandle", method: str, args: Sequence[Any], patience: int) -> None:
        self.handle, self.method, self.args, self.patience = handle, method, args, patience
        self.outcome: Outcome | None = None

    def done(self) -> bool:
        self.patience -= 1
        if self.patience < 0:
            self.handle.carry_out(self)
        return self.outcome is not None or self.handle.loss is not None

    def result(self, timeout: float) -> Outcome:
        if self.outcome is None and self.handle.loss is not None:
            raise OSError(self.handle.loss)
        if self.outcome is None:
            raise TimeoutError
        return self.outcome


class TurnHandle:
    """An actor whose calls wait until they are looked for."""

    pid: int | None = None

    def __init__(self, actor: LearnerActor, where: str) -> None:
        self.actor, self.where = actor, where
        self.loss: str | None = None
        self.troubles: dict[int, Exception | str] = {}
        """By the number of a request: an error to fail with, or the cause of its loss; once each."""
        self.patience = 0
        self.queue: list[TurnCall] = []
        self.sent: list[int] = []
        """Numbers of the requests that were sent to it."""
        self.is_silent = False

    def prepare(self, method: str, args: Sequence[Any]) -> Callable[[], TurnCall]:
        packed = pack(tuple(args))

        def start() -> TurnCall:
            if self.loss is not None:
                raise OSError(self.loss)
            call = TurnCall(self, method, unpack(packed), self.patience)
            self.queue.append(call)
            if method == "run":
                self.sent.append(call.args[0].number)
            return call

        return start

    def carry_out(self, last: TurnCall) -> None:
        while last in self.queue and self.loss is None:
            call = self.queue.pop(0)
            if call.method == "run":
                trouble = self.troubles.pop(call.args[0].number, None)
                if isinstance(trouble, str):
                    self.loss = trouble
                    return
                self.actor.learner.trouble = trouble  # type: ignore[attr-defined]
            call.outcome = getattr(self.actor, call.method)(*call.args)

    def ask_health(self) -> Any:
        return Answer(None if self.is_silent else self.actor.get_health())

    def stop(self) -> None:
        pass

    def release(self) -> None:
        self.loss = self.loss or "released"


class Answer:
    """An answer, or None for one that does not come."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def done(self) -> bool:
        return self._value is not None

    def result(self, timeout: float) -> Any:
        if self._value is None:
            raise TimeoutError
        return self._value


class ThreadCall:
    """A call on an actor's thread."""

    def __init__(self, handle: "ThreadHandle", future: "Future[Outcome]") -> None:
        self._handle, self._future = handle, future

    def done(self) -> bool:
        return self._future.done() or self._handle.loss is not None

    def result(self, timeout: float) -> Outcome:
        if self._handle.loss is not None:
            raise OSError(self._handle.loss)
        return self._future.result(timeout)


class ThreadHandle:
    """An actor with a thread of its own."""

    pid: int | None = None

    def __init__(self, actor: LearnerActor, where: str) -> None:
        self.actor, self.where = actor, where
        self.loss: str | None = None
        self._thread = ThreadPoolExecutor(1)

    def prepare(self, method: str, args: Sequence[Any]) -> Callable[[], ThreadCall]:
        def start() -> ThreadCall:
            if self.loss is not None:
                raise OSError(self.loss)
            return ThreadCall(self, self._thread.submit(getattr(self.actor, method), *args))

        return start

    def ask_health(self) -> Any:
        return Answer(self.actor.get_health())

    def stop(self) -> None:
        pass

    def kill(self, cause: str = "killed") -> None:
        """Lose it as a process is lost: its peers notice."""
        self.loss = self.loss or cause
        if self.actor._learner is not None:
            self.actor._learner.collective.close()

    def release(self) -> None:
        self.kill("released")
        self._thread.shutdown(wait=False, cancel_futures=True)


class Bench:
    """Spare actors, where a cluster has workers."""

    def __init__(self, spares: Iterable[Any]) -> None:
        self.spares = list(spares)
        self.ended: list[str] = []
        self.is_elastic = False

    def replacements(self, count: int, taken: Collection[str], budget: Any) -> list[Any]:
        if len(self.spares) < count and not self.is_elastic:
            raise WorkersMissingError(f"{len(self.spares)} spare actors of {count}")
        found, self.spares = self.spares[:count], self.spares[count:]
        return found

    def end_process(self, handle: Any) -> None:
        if handle.where not in self.ended:
            self.ended.append(handle.where)
        handle.loss = handle.loss or "killed"


def wait_in_process(calls: Iterable[Any], timeout: float) -> None:
    """What `wait_any` is for calls of Dask."""
    pending, deadline = list(calls), time.monotonic() + timeout
    while pending and time.monotonic() < deadline and not any(call.done() for call in pending):
        time.sleep(0.001)


def make_crew(
    num_learners: int,
    num_spares: int = 0,
    handle_class: type[Any] = TurnHandle,
    learner_class: type[Learner] = TroubledLearner,
    **learners: Any,
) -> tuple[Crew, Bench]:
    """A crew that has met, and the bench where replacements come from."""
    settings = LearnersConfig(**{"num_learners": num_learners, "precision": "fp64", "compile": "off", **learners})
    config = LearnerGroupConfig(
        algorithm={"name": "bc", "hidden_sizes": [2]},
        learners=settings.resolved(1).model_copy(update={"num_threads_per_learner": 1}),
    )
    actor_class = LoneActor if handle_class is TurnHandle else MeetingActor
    handles = [
        handle_class(actor_class(config, SPEC, learner_class), f"place {place}")
        for place in range(num_learners + num_spares)
    ]
    bench = Bench(handles[num_learners:])
    crew = Crew(config.learners, handles[:num_learners], bench)  # type: ignore[arg-type]
    crew.meet_first()
    return crew, bench


def admit(dispatcher: Dispatcher, number: int, *, is_async: bool = False, batch: Any = None) -> Admitted:
    """Send an update of one step to all learners."""
    given = {DEFAULT_MODULE_ID: make_batch("continuous", 4, seed=number)} if batch is None else batch
    entry = Admitted(number, lambda size: [UpdateRequest(number, batch=given)] * size, is_async)
    dispatcher.admit(entry)
    return entry
