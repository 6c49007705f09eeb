"""LearnerActor: one learner in its process. A plain class: works without a cluster too."""

import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from distributed import get_worker
from distributed.protocol.pickle import dumps, loads

from dask_rl.storage.errors import DaskRLError, LearnerError, explain

from .collective import ProcessGroup, Rendezvous, RendezvousStore, SingleProcess
from .config import LearnerGroupConfig
from .learner import Learner
from .metrics import Result
from .module import MultiRLModuleSpec
from .request import UpdateRequest


@dataclass(frozen=True)
class Outcome:
    """What a call gave: a value, or the error with its traceback as text."""

    value: Any = None
    error: DaskRLError | None = None
    traceback: str = ""


def pack(value: Any) -> bytes:
    """Serialise for the other side of a call.

    Dask's own actor calls stay pending for ever when an argument or a result cannot be serialised; this raises.
    """
    packed: bytes = dumps(value)
    return packed


def unpack(packed: bytes) -> Any:
    """Read back `pack`."""
    return loads(packed)


class LearnerActor:
    """Rank `rank` of a group of `size` learners.

    Its methods run one after the other on one thread of the worker; `health` runs on the worker's event loop and
    answers meanwhile. Every public method but `call` and `health` returns an Outcome: a learner's error is never taken
    for a lost process.
    """

    def __init__(
        self,
        config: LearnerGroupConfig,
        module_spec: MultiRLModuleSpec,
        rank: int,
        size: int,
        learner_class: type[Learner] = Learner,
    ) -> None:
        self._config = config
        self._module_spec = module_spec
        self._rank, self._size = rank, size
        self._learner_class = learner_class
        self._learner: Learner | None = None
        self._store: RendezvousStore | None = None
        self._state = "starting"
        self._last_error: str | None = None
        self._busy_since: float | None = None

    @property
    def learner(self) -> Learner:
        """The learner, once built."""
        if self._learner is None:
            raise RuntimeError("the learner is used before it is built")
        return self._learner

    def call(self, method: str, arguments: bytes) -> bytes:
        """Call a method from another process: packed arguments in, a packed Outcome out, whatever happens."""
        outcome = self._guarded("unpacking a call", lambda: unpack(arguments))
        if outcome.error is None:
            outcome = getattr(self, method)(*outcome.value)
        packed = self._guarded("packing a result", pack, outcome)
        return pack(packed) if packed.error is not None else bytes(packed.value)

    def build(self) -> Outcome:
        """Set threads and device, build the learner; the value says where it runs."""
        return self._guarded("building", self._build)

    def _build(self) -> dict[str, Any]:
        threads = self._config.learners.num_threads_per_learner
        if isinstance(threads, int):
            torch.set_num_threads(threads)
        device = torch.device("cuda:0" if self._config.learners.num_gpus_per_learner > 0 else "cpu")
        self._learner = self._learner_class(self._config, self._module_spec, device=device)
        self._learner.build()
        return {
            "rank": self._rank,
            "pid": os.getpid(),
            "device": str(device),
            "threads": torch.get_num_threads(),
        }

    def open_store(self, generation: int) -> Outcome:
        """Rank 0: open the store where the ranks of a generation meet; the value is its Rendezvous."""
        return self._guarded("opening a rendezvous", self._open_store, generation)

    def _open_store(self, generation: int) -> Rendezvous:
        host = get_worker().address.split("://")[-1].rsplit(":", 1)[0].strip("[]")
        self._store = RendezvousStore(host, generation, self._config.learners.startup_timeout_seconds)
        return self._store.rendezvous

    def join(self, rendezvous: Rendezvous | None) -> Outcome:
        """Leave the present group and join the next; all take over rank 0's state. None: alone."""
        return self._guarded("joining", self._join, rendezvous)

    def _join(self, rendezvous: Rendezvous | None) -> None:
        self.learner.collective.close()
        if rendezvous is None:
            self.learner.join(SingleProcess())
            return
        collective = ProcessGroup(
            rendezvous,
            self._rank,
            self._size,
            transport=self._config.learners.transport,
            timeout_seconds=self._config.learners.startup_timeout_seconds,
            store=self._store,
        )
        self.learner.join(collective)

    def run(self, request: UpdateRequest) -> Outcome:
        """Carry out an update request; the value is its Result."""
        return self._guarded("updating", self._run, request)

    def _run(self, request: UpdateRequest) -> Result:
        try:
            return self.learner.run(request)
        except BaseException:
            # Peers that wait in an exchange for this rank get an error at once instead of a time-out.
            self.learner.collective.close()
            raise

    def apply(self, func: Callable[..., Any], kwargs: Mapping[str, Any]) -> Outcome:
        """Call func(learner, **kwargs); the value is what it returns."""
        return self._guarded("running a function", lambda: func(self.learner, **kwargs))

    def close(self) -> Outcome:
        """Close the iterators and leave the group."""
        return self._guarded("closing", self._close)

    def _close(self) -> None:
        self._store = None
        if self._learner is not None:
            self._learner.close()

    async def health(self) -> dict[str, Any]:
        """Return rank, state, step, last error and seconds spent in the present call."""
        busy = 0.0 if self._busy_since is None else time.monotonic() - self._busy_since
        return {
            "rank": self._rank,
            "state": self._state,
            "step": self._learner.step if self._learner is not None else 0,
            "seconds_in_call": busy,
            "last_error": self._last_error,
        }

    def _as_own(self, error: Exception, state: str) -> DaskRLError:
        """Wrap foreign errors: their classes need not exist, or be picklable, where the caller is."""
        if isinstance(error, DaskRLError):
            return error
        where, got = f"learner {self._rank}, {state}", " ".join(f"{type(error).__name__}: {error}".split())
        return LearnerError(explain(where, got=got, fix="mend the function that raised it"))

    def _guarded(self, state: str, function: Callable[..., Any], *args: Any) -> Outcome:
        self._state, self._busy_since = state, time.monotonic()
        try:
            return Outcome(value=function(*args))
        except Exception as error:  # the boundary of the process: whatever it is, the caller is told
            self._last_error = f"{type(error).__name__}: {error}"
            return Outcome(error=self._as_own(error, state), traceback=traceback.format_exc())
        finally:
            self._state, self._busy_since = "ready", None
