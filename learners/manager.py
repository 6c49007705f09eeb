"""ActorManager: the handles of a group's actors, which of them are healthy, and calls on them."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from dask_rl.storage.errors import LearnerLostError, PeersLostError, WaitTimeoutError, explain

from .dask_handle import wait_any
from .handles import LOST, ActorHandle, PendingCall


@dataclass(frozen=True)
class CallResult:
    """What one actor gave back: a value or an error."""

    actor_id: int
    value: Any = None
    error: Exception | None = None
    tag: Hashable = None
    """That of the asynchronous call that it belongs to."""

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.error is None

    def get(self) -> Any:
        """Return the value or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, eq=False)
class StartedCall:
    """A call that is under way on one actor."""

    actor_id: int
    tag: Hashable
    stage: str
    pending: PendingCall

    def done(self) -> bool:
        """Tell whether `result` returns or raises at once."""
        return self.pending.done()

    def result(self, timeout: float) -> Any:
        """Return the value or raise the error; TimeoutError after `timeout` seconds, OSError for a lost process."""
        outcome = self.pending.result(timeout)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value


class ActorManager:
    """Calls on all or some of a group's actors; tells lost processes from failing functions.

    Synchronous calls (`call`) have a time limit and return in the order of the ids. Asynchronous ones (`submit`)
    carry a tag and are collected with `ready`. A finished call leaves nothing behind here.
    """

    def __init__(self, handles: Sequence[ActorHandle]) -> None:
        self.handles = list(handles)
        self._lost: dict[int, str] = {}
        self._in_flight: list[StartedCall] = []
        self._num_calls = 0

    def __len__(self) -> int:
        """Return the number of actors."""
        return len(self.handles)

    @property
    def healthy_actor_ids(self) -> list[int]:
        """Ids of the actors that were not lost."""
        return [actor_id for actor_id in range(len(self.handles)) if actor_id not in self._lost]

    @property
    def lost(self) -> dict[int, str]:
        """The lost actors and why; a loss that Dask reports without a call is noticed here."""
        for actor_id, handle in enumerate(self.handles):
            if handle.loss is not None:
                self._lost.setdefault(actor_id, handle.loss)
        return dict(self._lost)

    def lose(self, actor_id: int, cause: str) -> None:
        """Take an actor for lost."""
        self._lost.setdefault(actor_id, cause)

    def call(
        self,
        method: str,
        arguments: Sequence[Sequence[Any]],
        *,
        timeout: float,
        stage: str,
        actor_ids: Sequence[int] | None = None,
        watch: Callable[[], None] | None = None,
    ) -> list[CallResult]:
        """Call `method` on each actor with its own arguments; return the results in the order of the ids.

        Args:
            method: a method of LearnerActor that returns an Outcome.
            arguments: one tuple an actor.
            timeout: seconds for all of them together; 0 does not wait at all and returns nothing.
            stage: what the call is for, named in errors.
            actor_ids: which actors; None: all.
            watch: called now and then; actors that it declares lost are not waited for.
        """
        ids = list(range(len(self.handles))) if actor_ids is None else list(actor_ids)
        lost_before = set(self.lost)  # who asks one of these wants to know whether it answers
        self._num_calls += 1
        tag = ("call", self._num_calls)
        results: dict[int, CallResult] = {}
        try:
            self.submit(method, arguments, tag=tag, stage=stage, actor_ids=ids)
            deadline = time.monotonic() + timeout
            while len(results) < len(ids) and (left := deadline - time.monotonic()) > 0:
                results |= {result.actor_id: result for result in self.ready([tag], timeout=min(left, 1.0))}
                if watch is not None and len(results) < len(ids):
                    watch()
                    lost = {i: cause for i, cause in self.lost.items() if i in ids and i not in lost_before}
                    results = {i: _lost_result(i, cause, tag) for i, cause in lost.items()} | results
        finally:
            self.forget([tag])
        if timeout == 0:
            return []
        return [results.get(actor_id) or _late_result(actor_id, stage, timeout, tag) for actor_id in ids]

    def submit(
        self,
        method: str,
        arguments: Sequence[Sequence[Any]],
        *,
        tag: Hashable,
        stage: str,
        actor_ids: Sequence[int] | None = None,
        max_in_flight: int | None = None,
        max_in_flight_of_tag: int | None = None,
    ) -> bool:
        """Start a call on all the actors without waiting, or, where one of them has no room, on none of them.

        Args:
            method: a method of LearnerActor that returns an Outcome.
            arguments: one tuple an actor.
            tag: what `ready` collects it by.
            stage: what the call is for, named in errors.
            actor_ids: which actors; None: all.
            max_in_flight: calls that an actor may have under way; None: any number.
            max_in_flight_of_tag: the same for calls of this tag.

        Returns:
            Whether it was started.
        """
        ids = list(range(len(self.handles))) if actor_ids is None else list(actor_ids)
        for limit, counted in ((max_in_flight, self.in_flight()), (max_in_flight_of_tag, self.in_flight([tag]))):
            if limit is not None and any(counted[actor_id] >= limit for actor_id in ids):
                return False
        self._in_flight += self.start(method, arguments, stage=stage, actor_ids=ids, tag=tag)
        return True

    def in_flight(self, tags: Collection[Hashable] | None = None) -> Counter[int]:
        """Return the number of asynchronous calls under way by actor id, of some tags or of all."""
        return Counter(call.actor_id for call in self._in_flight if tags is None or call.tag in tags)

    def ready(self, tags: Collection[Hashable] | None = None, timeout: float = 0.0) -> list[CallResult]:
        """Return the asynchronous calls that are done, oldest first; waits for one at most `timeout` seconds."""
        wanted = [call for call in self._in_flight if tags is None or call.tag in tags]
        if timeout > 0:
            wait_any([call.pending for call in wanted], timeout)
        done = [call for call in wanted if call.pending.done()]
        self._in_flight = [call for call in self._in_flight if call not in done]
        return [self._collect(call) for call in done]

    def forget(self, tags: Collection[Hashable] | None = None) -> None:
        """Leave asynchronous calls to themselves."""
        self._in_flight = [call for call in self._in_flight if tags is not None and call.tag not in tags]

    def probe(self, timeout: float) -> list[int]:
        """Ask the lost actors how they do; those that answer are healthy again. Returns their ids."""
        restored = []
        deadline = time.monotonic() + timeout
        for actor_id in sorted(self._lost):
            try:
                self.handles[actor_id].ask_health().result(max(0.0, deadline - time.monotonic()))
            except (TimeoutError, *LOST):
                continue
            del self._lost[actor_id]
            restored.append(actor_id)
        return restored

    def restore(self, actor_id: int) -> None:
        """Take an actor that answered for healthy again."""
        self._lost.pop(actor_id, None)

    def start(
        self,
        method: str,
        arguments: Sequence[Sequence[Any]],
        *,
        stage: str,
        actor_ids: Sequence[int] | None = None,
        tag: Hashable = None,
    ) -> list["StartedCall"]:
        """Start a call on each actor, and leave it to the caller."""
        ids = list(range(len(self.handles))) if actor_ids is None else list(actor_ids)
        # What cannot be packed raises here, before any learner has begun: one alone would wait for its peers.
        calls = [self.handles[actor_id].prepare(method, args) for actor_id, args in zip(ids, arguments, strict=True)]
        return [StartedCall(actor_id, tag, stage, self._start(call)) for actor_id, call in zip(ids, calls, strict=True)]

    def _start(self, call: Callable[[], PendingCall]) -> PendingCall:
        try:
            return call()
        except LOST as error:
            return _NotStarted(error)

    def _collect(self, call: "StartedCall") -> CallResult:
        try:
            outcome = call.pending.result(0)
        except LOST as error:
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            self.lose(call.actor_id, reason)
            return _lost_result(call.actor_id, reason, call.tag)
        if outcome.error is None:
            return CallResult(call.actor_id, outcome.value, tag=call.tag)
        outcome.error.add_note(f"On learner {call.actor_id}:\n{outcome.traceback}")
        return CallResult(call.actor_id, error=outcome.error, tag=call.tag)

    def release(self) -> None:
        """Let all actors go."""
        self._in_flight = []
        for handle in self.handles:
            handle.release()


@dataclass(frozen=True)
class _NotStarted:
    """A call to a process that is gone."""

    error: Exception

    def done(self) -> bool:
        return True

    def result(self, timeout: float) -> Any:
        raise self.error


def _lost_result(actor_id: int, reason: str, tag: Hashable) -> CallResult:
    fix = "look at the worker's log; run the same job again to go on from its last checkpoint"
    message = explain(f"learner {actor_id}", got=f"a lost worker process ({reason})", fix=fix)
    return CallResult(actor_id, error=LearnerLostError(message), tag=tag)


def _late_result(actor_id: int, stage: str, timeout: float, tag: Hashable) -> CallResult:
    limit = "timeout_seconds where it was given, else the matching learners.*_timeout_seconds"
    fix = f"look at the worker's log and load, or raise {limit}"
    message = explain(f"learner {actor_id}, {stage}", got=f"no answer in {timeout:g} s", fix=fix)
    return CallResult(actor_id, error=WaitTimeoutError(message), tag=tag)


def values(results: Sequence[CallResult]) -> list[Any]:
    """Return the values; raise the error that explains the others, if there is one.

    When one learner fails or hangs, its peers report a lost connection or a silent peer: the cause comes first.
    """
    errors = [result.error for result in results if result.error is not None]
    if errors:
        raise first_cause(errors)
    return [result.value for result in results]


def first_cause(errors: Sequence[Exception]) -> Exception:
    """Return the error that explains the others."""
    return min(errors, key=_distance_from_cause)


def is_application_error(error: Exception) -> bool:
    """Tell an error of a function, or of data that do not come, from one of processes and connections."""
    return not isinstance(error, LearnerLostError)


def _distance_from_cause(error: Exception) -> int:
    if isinstance(error, PeersLostError):
        return 3
    if isinstance(error, WaitTimeoutError):
        return 2
    return 1 if isinstance(error, LearnerLostError) else 0
