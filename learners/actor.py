"""LearnerActor: one learner in its process. A plain class: works without a cluster too."""

import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from distributed import get_worker

from dask_rl.storage.errors import DaskRLError, LearnerError, explain

from .activity import IDLE, WAITING_FOR_DATA, Activity
from .algorithm import Algorithm
from .algorithms.registry import register_algorithm
from .batch import ModuleID, as_multi_batch
from .calls import Membership, Outcome, pack, unpack
from .collective import ProcessGroup, Rendezvous, RendezvousStore, SingleProcess
from .config import LearnerGroupConfig
from .futures import fetch
from .health import HealthReport, HealthState
from .learner import Learner
from .metrics import Result
from .module import MultiRLModuleSpec
from .published import GroupIdentity
from .request import Position, UpdateRequest

_STATES = {
    "idle": HealthState.READY,
    "waiting for data": HealthState.WAITING_FOR_DATA,
    "in the collective": HealthState.IN_COLLECTIVE,
}
"""What a learner does, in the table's words; everything else is updating."""


class LearnerActor:
    """One learner of a group.

    Its methods run one after the other on one thread of the worker; `health`, `stop` and `forsake` run on the worker's
    event loop and answer meanwhile. Every public method but these and `call` returns an Outcome: a learner's error is
    never taken for a lost process.
    """

    _told: tuple[type[BaseException], ...] = (Exception,)
    """What the caller is told of, of all that functions of the user's raise."""

    def __init__(
        self,
        config: LearnerGroupConfig,
        module_spec: MultiRLModuleSpec,
        learner_class: type[Learner] = Learner,
        options: Mapping[str, Any] | None = None,
        algorithm_classes: Iterable[type[Algorithm[Any]]] = (),
        states: Mapping[ModuleID, Any] | None = None,
        identity: GroupIdentity | None = None,
    ) -> None:
        self._take_blueprint(config, module_spec, learner_class, options, algorithm_classes, states, identity)
        self._learner: Learner | None = None
        self._store: RendezvousStore | None = None
        self._inbox: dict[int, tuple[str, bytes]] = {}
        self._next_call = 0
        self.rank = -1
        """Its place in the group; -1 before it has joined."""
        self.generation = 0
        self._last_error: str | None = None
        self._call: tuple[str, float] | None = None
        self._forsaken: dict[int, str] = {}
        """The key of a future that was cancelled, by the number of the request that needs it."""

    def _take_blueprint(
        self,
        config: LearnerGroupConfig,
        module_spec: MultiRLModuleSpec,
        learner_class: type[Learner],
        options: Mapping[str, Any] | None,
        algorithm_classes: Iterable[type[Algorithm[Any]]],
        states: Mapping[ModuleID, Any] | None = None,
        identity: GroupIdentity | None = None,
    ) -> None:
        """Follow what learners are made of by now; `states` are the weights that modules come with."""
        for algorithm in algorithm_classes:  # a user's own may have come by value, from a notebook
            register_algorithm(algorithm)
        self._config = config
        self._module_spec = module_spec
        self._learner_class = learner_class
        self._options = dict(options or {})
        self._states = dict(states or {})
        self.identity = identity or GroupIdentity()

    @property
    def learner(self) -> Learner:
        """The learner, once built."""
        if self._learner is None:
            raise RuntimeError("the learner is used before it is built")
        return self._learner

    @property
    def activity(self) -> Activity | None:
        """What the learner is at; None before it is built."""
        return None if self._learner is None else self._learner.activity

    def call(self, number: int, method: str, arguments: bytes) -> list[tuple[int, bytes]]:
        """Call a method from another process, in the order of the numbers, whatever the order of arrival.

        Args:
            number: position among the calls to this actor, from 0.
            method: its name.
            arguments: a packed tuple.

        Returns:
            (number, packed Outcome) of this call and of those that came before their turn and waited for it; nothing
            where this one has to wait.
        """
        self._inbox[number] = method, arguments
        answers = []
        while self._next_call in self._inbox:
            due, self._next_call = self._next_call, self._next_call + 1
            answers.append((due, self._answer(*self._inbox.pop(due))))
        return answers

    def _answer(self, method: str, arguments: bytes) -> bytes:
        outcome = self._guarded("unpacking a call", lambda: unpack(arguments))
        if outcome.error is None:
            outcome = getattr(self, method)(*outcome.value)
        packed = self._guarded("packing a result", pack, outcome)
        return pack(packed) if packed.error is not None else bytes(packed.value)

    def build(self, blueprint: Sequence[Any] | None = None, is_new: bool = True) -> Outcome:
        """Build the learner, or bring the one that is there to other modules; the value says where it runs.

        Args:
            blueprint: arguments of a LearnerActor, as they are by now; None: those that it was constructed with.
            is_new: False keeps the learner that is there, and gives it the blueprint's modules.
        """
        return self._guarded("building", self._build, blueprint, is_new)

    def _build(self, blueprint: Sequence[Any] | None, is_new: bool) -> dict[str, Any]:
        if blueprint is not None:
            self._take_blueprint(*blueprint)
        if is_new or self._learner is None:
            self._build_anew()
        else:
            self._learner.set_modules(self._config, self._module_spec, self._states, **self._options)
        return {"pid": os.getpid(), "device": str(self.learner.device), "threads": torch.get_num_threads()}

    def _build_anew(self) -> None:
        """Set threads and device, build a learner."""
        threads = self._config.learners.num_threads_per_learner
        if isinstance(threads, int):
            torch.set_num_threads(threads)
        if self._learner is not None:  # one that broke off while it took over the state of another begins anew
            self._learner.close()
        device = torch.device("cuda:0" if self._config.learners.num_gpus_per_learner > 0 else "cpu")
        self._learner = self._learner_class(self._config, self._module_spec, device=device, **self._options)
        self._learner.build()

    def open_store(self, generation: int) -> Outcome:
        """Rank 0: open the store where the ranks of a generation meet; the value is its Rendezvous."""
        return self._guarded("opening a rendezvous", self._open_store, generation)

    def _open_store(self, generation: int) -> Rendezvous:
        host = get_worker().address.split("://")[-1].rsplit(":", 1)[0].strip("[]")
        self._store = RendezvousStore(host, generation, self._config.learners.startup_timeout_seconds)
        return self._store.rendezvous

    def leave(self) -> Outcome:
        """Leave the present generation; the value is the learner's Position, None where others must not rely on it."""
        return self._guarded("leaving", self._leave)

    def _leave(self) -> Position | None:
        self._store = None
        if self._learner is None:
            return None
        position = self._learner.leave()
        return position if self._learner.knows_state else None

    def join(self, membership: Membership) -> Outcome:
        """Join a generation; all take over the state of its source."""
        return self._guarded("joining", self._join, membership)

    def _join(self, membership: Membership) -> None:
        self.rank = membership.rank
        self.learner.collective.close()
        rendezvous, settings = membership.rendezvous, self._config.learners
        self.generation = 0 if rendezvous is None else rendezvous.generation
        if rendezvous is None:
            self._store = None
            self.learner.join(SingleProcess(), position=membership.position)
            return
        first = rendezvous.generation == 1
        collective = ProcessGroup(
            rendezvous,
            membership.rank,
            membership.size,
            transport=settings.transport,
            # Later all have been built before they meet, and one that does not come is a lost one.
            timeout_seconds=settings.startup_timeout_seconds if first else settings.collective_timeout_seconds,
            store=self._store,
        )
        collective.set_timeout(settings.startup_timeout_seconds)
        try:
            self.learner.join(collective, source=membership.source, position=membership.position)
        except BaseException:
            collective.close()  # so that peers need not wait for the time-out
            raise

    def run(self, request: UpdateRequest) -> Outcome:
        """Carry out an update request; the value is its Result."""
        return self._guarded("updating", self._run, request)

    def _run(self, request: UpdateRequest) -> Result:
        try:
            self.learner.check_may_begin(request)  # one that cannot begin need not wait for its data
            return self.learner.run(self._resolve(request))
        except BaseException:
            # Peers that wait in an exchange for this rank get an error at once instead of a time-out.
            self.learner.collective.close()
            raise

    def _resolve(self, request: UpdateRequest) -> UpdateRequest:
        """Fetch batches or episodes that are given as keys of Dask futures."""
        if not request.future_keys:
            return request
        timeout = self._config.learners.data_timeout_seconds
        self.learner.activity.enter(WAITING_FOR_DATA)
        try:
            values = [fetch(key, timeout, lambda: self._forsaken.get(request.number)) for key in request.future_keys]
        finally:
            self.learner.activity.enter(IDLE)
            self._forsaken.pop(request.number, None)
        if request.futures_are_episodes:
            return replace(request, future_keys=(), episodes=[episode for value in values for episode in value])
        return replace(request, future_keys=(), batch=as_multi_batch(values[0]))

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

    async def health(self) -> HealthReport:
        """Return how the learner does, also while it is busy."""
        return self.get_health()

    async def stop(self) -> None:
        """Have an update under way end before its next step."""
        if self._learner is not None:
            self._learner.stop_requested = True

    async def forsake(self, number: int, key: str) -> None:
        """Have a request end that waits for its data: the driver's future of this key was cancelled."""
        self._forsaken[number] = key

    def get_health(self) -> HealthReport:
        """Return how the learner does."""
        now, call, learner = time.monotonic(), self._call, self._learner
        if learner is None:
            return HealthReport(HealthState.STARTING, 0.0 if call is None else now - call[1])
        if call is None:
            return HealthReport(HealthState.READY, 0.0, learner.step, learner.is_warm, self._last_error)
        activity = learner.activity
        state, since = HealthState.UPDATING, call[1]
        if call[0] == "running a function":
            state = HealthState.IN_FUNCTION
        elif call[0] == "updating":
            state, since = _STATES.get(activity.name, HealthState.UPDATING), max(since, activity.since)
        return HealthReport(state, now - since, learner.step, learner.is_warm, self._last_error)

    def _as_own(self, error: BaseException, state: str) -> DaskRLError:
        """Wrap foreign errors: their classes need not exist, or be picklable, where the caller is."""
        if isinstance(error, DaskRLError):
            return error
        where, got = f"learner {self.rank}, {state}", " ".join(f"{type(error).__name__}: {error}".split())
        return LearnerError(explain(where, got=got, fix="mend the function that raised it"))

    def _guarded(self, state: str, function: Callable[..., Any], *args: Any) -> Outcome:
        self._call = state, time.monotonic()
        try:
            return Outcome(value=function(*args))
        except self._told as error:  # the boundary of the process: whatever it is, the caller is told
            self._last_error = f"{type(error).__name__}: {error}"
            return Outcome(error=self._as_own(error, state), traceback=traceback.format_exc())
        finally:
            self._call = None
