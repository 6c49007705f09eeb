"""DaskHandle: an actor on a Dask worker, and its calls."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import CancelledError, Client

from dask_rl.storage.errors import LearnerError, LearnerLostError, explain

from .calls import Outcome, pack, unpack
from .dask_client import CLIENT_CLOSED, is_closed, noticing_its_end
from .handles import LOST, PendingCall
from .remote_actor import RemoteLearnerActor
from .workers import Place, workers_of

_LOOK_EVERY_SECONDS = 1.0
"""How soon a worker that died while it started its learner is missed."""
_ACTOR_LOST = "Worker holding Actor was lost"
"""Dask's words, in a RuntimeError, for a worker that left after it had constructed its actor."""
_DONE_SECONDS = 5.0
"""For taking over what is there already, which goes through the client's event loop."""


@dataclass(eq=False)
class _Remote:
    """One call of a handle; its answer may come back with that of another call that overtook it."""

    handle: "DaskHandle"
    number: int
    outcome: Outcome | None = None

    def done(self) -> bool:
        return self.outcome is not None or self.handle.has_answer(self.number)

    def result(self, timeout: float) -> Outcome:
        if self.outcome is not None:
            return self.outcome
        deadline = time.monotonic() + timeout
        while not self.done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            wait_any([self], left)
        self.outcome = self.handle.take_answer(self.number)
        return self.outcome

    def __del__(self) -> None:
        self.handle.forget(self.number)


@dataclass(frozen=True)
class _Question:
    future: Any

    def done(self) -> bool:
        is_done: bool = self.future.done()
        return is_done

    def result(self, timeout: float) -> Any:
        with noticing_its_end():
            return self.future.result(_DONE_SECONDS if self.done() else timeout)


class DaskHandle:
    """An actor on a Dask worker. Holds the creating future: an actor without one may vanish.

    Dask may deliver calls out of order; they are numbered, and the actor keeps one that comes early.
    """

    def __init__(self, client: Client, place: Place, arguments: Sequence[Any], resources: dict[str, float]) -> None:
        self.where, self.worker_id = place
        self.submitted_at = time.monotonic()
        self.pid: int | None = None
        self.client = client
        self._future: Any = client.submit(
            RemoteLearnerActor,
            pack(tuple(arguments)),
            actor=True,
            pure=False,
            workers=[self.where],
            allow_other_workers=False,
            resources=resources or None,
        )
        self._actor: Any = None
        self._num_calls = 0
        self.open_calls: dict[int, Any] = {}
        """Dask's futures of the calls that have not come back, by number."""
        self._answers: dict[int, bytes] = {}
        self._awaited: set[int] = set()
        """Numbers of the calls whose answers somebody may still take."""
        self._loss: str | None = None

    @property
    def key(self) -> str:
        """Dask's name for the actor."""
        return str(self._future.key)

    @property
    def is_constructed(self) -> bool:
        """Whether `start` returns or raises at once."""
        is_done: bool = self._future.done()
        return is_done

    def start(self, timeout: float) -> None:
        """Wait until the actor is constructed; once its worker is gone Dask would wait for it to come back.

        Raises:
            LearnerLostError: the worker is gone.
            TimeoutError: it takes longer.
        """
        deadline = time.monotonic() + timeout
        while self._actor is None:
            left = max(0.0, deadline - time.monotonic())
            try:
                with noticing_its_end():
                    self._actor = self._future.result(timeout=min(left, _LOOK_EVERY_SECONDS))
            except TimeoutError:
                if self.where not in workers_of(self.client):
                    raise LearnerLostError(f"no worker at {self.where} any more") from None
                if left <= _LOOK_EVERY_SECONDS:
                    raise
            except RuntimeError as error:
                if not str(error).startswith(_ACTOR_LOST):
                    raise
                raise LearnerLostError(f"the worker at {self.where} left with its actor") from None

    def prepare(self, method: str, args: Sequence[Any]) -> Callable[[], PendingCall]:
        """Pack the call; the result starts it on the worker."""
        packed = pack(args)
        return lambda: self._start_call(method, packed)

    def _start_call(self, method: str, packed: bytes) -> PendingCall:
        if self.loss is not None:
            raise OSError(self.loss)
        number, self._num_calls = self._num_calls, self._num_calls + 1
        self._awaited.add(number)
        try:
            self.open_calls[number] = self._actor.call(number, method, packed)
        except BaseException as error:
            # The actor would wait for this number for ever before it turns to a later one.
            self._loss = self._loss or f"a call that was broken off ({type(error).__name__})"
            raise
        return _Remote(self, number)

    def ask_health(self) -> PendingCall:
        """Ask the worker's event loop."""
        if self.loss is not None:
            raise OSError(self.loss)
        return _Question(self._actor.health())

    def stop(self) -> None:
        """Tell the worker's event loop."""
        if self._actor is not None:
            self._actor.stop()

    def forsake(self, number: int, key: str) -> None:
        """Tell the worker's event loop."""
        if self._actor is not None:
            self._actor.forsake(number, key)

    def has_answer(self, number: int) -> bool:
        """Tell whether a call's answer is here, or can no longer come."""
        for other, future in [(other, future) for other, future in self.open_calls.items() if future.done()]:
            try:
                with noticing_its_end():
                    answers = future.result(_DONE_SECONDS)
            except TimeoutError:  # the event loop here is busy, or this process was stopped: it is asked again
                continue
            except LOST as error:
                self._loss = (str(error).splitlines() or [""])[0] or type(error).__name__
            else:
                self._answers.update((n, packed) for n, packed in answers if n in self._awaited)
            self.open_calls.pop(other, None)
        if not self.open_calls and number in self._awaited and number not in self._answers:
            self._loss = self._loss or "an answer that did not come"
        return number in self._answers or self.loss is not None

    def forget(self, number: int) -> None:
        """Keep no answer of a call: nobody will ask for it any more."""
        self._awaited.discard(number)
        self._answers.pop(number, None)

    def take_answer(self, number: int) -> Outcome:
        """Return the answer of a call, once; raise OSError where it can no longer come."""
        if number not in self._answers:
            raise OSError(self.loss or "no answer")
        packed = self._answers.pop(number)
        try:
            outcome: Outcome = unpack(packed)
        except Exception as error:  # whatever a class that came along does; the actor is well
            fix = "return what can be unpacked here: numbers, arrays, classes that are installed"
            got = f"a result that cannot be unpacked ({type(error).__name__}: {error})"
            return Outcome(error=LearnerError(explain(f"learner at {self.where}", got=got, fix=fix)))
        return outcome

    @property
    def loss(self) -> str | None:
        """Why its process is known to be lost; also noticed without a call under way."""
        if self._loss is None and self._actor is not None:
            if is_closed(self.client):
                self._loss = CLIENT_CLOSED
            elif self._future.status != "finished":
                self._loss = f"its actor is {self._future.status}"
        return self._loss

    def release(self) -> None:
        """Have the worker free the actor.

        Dropping proxy and future would do in time only: each call of a proxy leaves a cycle of references to it.
        """
        self._loss = self._loss or "released"
        self._actor = None
        self.open_calls.clear()
        self._answers.clear()
        self._awaited.clear()
        if is_closed(self.client):
            return  # which has released all of its actors
        with contextlib.suppress(CancelledError, *LOST), noticing_its_end():
            self.client.cancel([self._future], force=True)


def wait_any(calls: Iterable[PendingCall], timeout: float) -> None:
    """Wait until one of the calls is done, or another call to the same actors, at most `timeout` seconds."""
    pending = list(calls)
    if not pending or any(call.done() for call in pending):
        return
    handles = {id(call.handle): call.handle for call in pending if isinstance(call, _Remote)}
    futures = [future for handle in handles.values() for future in handle.open_calls.values()]
    client = next(iter(handles.values())).client
    with contextlib.suppress(*LOST), noticing_its_end():  # or it is closed: then all of them are done
        client.sync(_first, futures, callback_timeout=timeout)


async def _first(futures: Sequence[Any]) -> None:
    tasks = [asyncio.ensure_future(_settled(future)) for future in futures]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _settled(future: Any) -> None:
    with contextlib.suppress(*LOST):
        await future
