"""Handles of a group's actors: in this process, or on a Dask worker."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from distributed import Client

from dask_rl.storage.errors import LearnerLostError

from .actor import LearnerActor, Outcome, pack, unpack

_LOOK_EVERY_SECONDS = 1.0
"""How soon a worker that died while it started its learner is missed."""


class PendingCall(Protocol):
    """A call under way."""

    def result(self, timeout: float) -> Outcome:
        """Return its outcome; raise TimeoutError after `timeout` seconds."""
        ...


class ActorHandle(Protocol):
    """An actor, here or in a worker."""

    def prepare(self, method: str, args: Sequence[Any]) -> Callable[[], PendingCall]:
        """Pack a call; the result starts it."""
        ...

    def release(self) -> None:
        """Let the actor go."""
        ...


@dataclass(frozen=True)
class _Done:
    outcome: Outcome

    def result(self, timeout: float) -> Outcome:
        return self.outcome


@dataclass(frozen=True)
class _Packed:
    future: Any

    def result(self, timeout: float) -> Outcome:
        outcome: Outcome = unpack(self.future.result(timeout))
        return outcome


class LocalHandle:
    """An actor in this process; calls are made at once."""

    def __init__(self, actor: LearnerActor) -> None:
        self._actor = actor

    def prepare(self, method: str, args: Sequence[Any]) -> Callable[[], PendingCall]:
        """Return what makes the call."""
        return lambda: _Done(getattr(self._actor, method)(*args))

    def release(self) -> None:
        """Do nothing: the actor goes with its handle."""


class DaskHandle:
    """An actor on a Dask worker. Holds the creating future: an actor without one may vanish."""

    def __init__(self, client: Client, address: str, arguments: Sequence[Any], resources: dict[str, float]) -> None:
        self.address = address
        self._future: Any = client.submit(
            LearnerActor,
            *arguments,
            actor=True,
            pure=False,
            workers=[address],
            allow_other_workers=False,
            resources=resources or None,
        )
        self._actor: Any = None

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
                self._actor = self._future.result(timeout=min(left, _LOOK_EVERY_SECONDS))
            except TimeoutError:
                if self.address not in self._future.client.scheduler_info(n_workers=-1)["workers"]:
                    raise LearnerLostError(f"no worker at {self.address} any more") from None
                if left <= _LOOK_EVERY_SECONDS:
                    raise

    def prepare(self, method: str, args: Sequence[Any]) -> Callable[[], PendingCall]:
        """Pack the call; the result starts it on the worker."""
        packed = pack(args)
        return lambda: _Packed(self._actor.call(method, packed))

    def release(self) -> None:
        """Drop proxy and future; the worker frees the actor."""
        self._actor = None
        self._future.release()
