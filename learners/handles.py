"""Handles of a group's actors: what all of them can do, and one in this process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .actor import LearnerActor

LOST = (OSError, RuntimeError, ValueError)
"""Dask's words for a worker that is gone, or for an actor that it no longer knows."""


class PendingCall(Protocol):
    """A call under way."""

    def done(self) -> bool:
        """Tell whether `result` returns or raises at once."""
        ...

    def result(self, timeout: float) -> Any:
        """Return what it gave; raise TimeoutError after `timeout` seconds, one of LOST for a lost process."""
        ...


class ActorHandle(Protocol):
    """An actor, here or in a worker."""

    def prepare(self, method: str, args: Sequence[Any]) -> Callable[[], PendingCall]:
        """Pack a call; the result starts it. Calls are carried out in the order in which they were started."""
        ...

    def ask_health(self) -> PendingCall:
        """Ask how it does; answered also while it is busy."""
        ...

    where: str
    """The address of its process."""
    worker_id: str
    """What tells its process from others that had or will have this address."""
    pid: int | None
    """Its process, once it is built."""

    @property
    def loss(self) -> str | None:
        """Why its process is known to be lost, or None."""
        ...

    def stop(self) -> None:
        """Have an update under way end at its next step; does not wait for it."""
        ...

    def forsake(self, number: int, key: str) -> None:
        """Have a request end that waits for a future which was cancelled; does not wait for it."""
        ...

    def release(self) -> None:
        """Let the actor go."""
        ...


@dataclass(frozen=True)
class _Done:
    value: Any

    def done(self) -> bool:
        return True

    def result(self, timeout: float) -> Any:
        return self.value


class LocalHandle:
    """An actor in this process; calls are made at once."""

    where = worker_id = "this process"
    pid: int | None = None

    def __init__(self, actor: LearnerActor) -> None:
        self._actor = actor

    @property
    def loss(self) -> None:
        """None: it lives as long as this process."""
        return None

    def prepare(self, method: str, args: Sequence[Any]) -> Callable[[], PendingCall]:
        """Return what makes the call."""
        return lambda: _Done(getattr(self._actor, method)(*args))

    def ask_health(self) -> PendingCall:
        """Return its health."""
        return _Done(self._actor.get_health())

    def stop(self) -> None:
        """Do nothing: no update is under way."""

    def forsake(self, number: int, key: str) -> None:
        """Do nothing: no update is under way."""

    def release(self) -> None:
        """Do nothing: the actor goes with its handle."""
