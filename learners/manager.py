"""ActorManager: the handles of a group's actors, which of them are healthy, and calls on them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import CancelledError, Client, KilledWorker

from dask_rl.storage.errors import ConfigError, LearnerError, LearnerLostError, WaitTimeoutError, explain

from .collective import LOST_CONNECTION, SILENT_PEERS
from .handles import ActorHandle, DaskHandle, PendingCall


@dataclass(frozen=True)
class CallResult:
    """What one actor gave back: a value or an error."""

    actor_id: int
    value: Any = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.error is None

    def get(self) -> Any:
        """Return the value or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class ActorManager:
    """Calls on all or some of a group's actors, with time limits; tells lost actors from failing functions."""

    def __init__(self, handles: Sequence[ActorHandle]) -> None:
        self.handles = list(handles)
        self._healthy = set(range(len(self.handles)))

    def __len__(self) -> int:
        """Return the number of actors."""
        return len(self.handles)

    @property
    def healthy_actor_ids(self) -> list[int]:
        """Ids of the actors that were not lost."""
        return sorted(self._healthy)

    def call(
        self,
        method: str,
        arguments: Sequence[Sequence[Any]],
        *,
        timeout: float,
        stage: str,
        actor_ids: Sequence[int] | None = None,
    ) -> list[CallResult]:
        """Call `method` on each actor with its own arguments; return the results in the order of the ids.

        Args:
            method: a method of LearnerActor that returns an Outcome.
            arguments: one tuple an actor.
            timeout: seconds for all of them together.
            stage: what the call is for, named in errors.
            actor_ids: which actors; None: all.
        """
        ids = list(range(len(self.handles))) if actor_ids is None else list(actor_ids)
        # What cannot be packed raises here, before any learner has begun: one alone would wait for its peers.
        calls = [self.handles[actor_id].prepare(method, args) for actor_id, args in zip(ids, arguments, strict=True)]
        deadline = time.monotonic() + timeout
        pending = [self._start(actor_id, call) for actor_id, call in zip(ids, calls, strict=True)]
        return [
            call if isinstance(call, CallResult) else self._collect(actor_id, call, deadline, timeout, stage)
            for actor_id, call in zip(ids, pending, strict=True)
        ]

    def call_all(self, method: str, *args: Any, timeout: float, stage: str) -> list[Any]:
        """Call `method` on every actor with the same arguments; return the values or raise the first cause."""
        return values(self.call(method, [args] * len(self.handles), timeout=timeout, stage=stage))

    def _start(self, actor_id: int, call: Callable[[], PendingCall]) -> PendingCall | CallResult:
        try:
            return call()
        except (OSError, RuntimeError) as error:
            return self._lost(actor_id, error)

    def _collect(self, actor_id: int, call: PendingCall, deadline: float, timeout: float, stage: str) -> CallResult:
        try:
            outcome = call.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            message = explain(
                f"learner {actor_id}, {stage}",
                got=f"no answer in {timeout:g} s",
                fix="look at the worker's log and load, or raise the matching learners.*_timeout_seconds",
            )
            return CallResult(actor_id, error=WaitTimeoutError(message))
        except (OSError, RuntimeError, ValueError) as error:  # Dask's words for a worker that is gone
            return self._lost(actor_id, error)
        if outcome.error is None:
            return CallResult(actor_id, outcome.value)
        outcome.error.add_note(f"On learner {actor_id}:\n{outcome.traceback}")
        return CallResult(actor_id, error=outcome.error)

    def _lost(self, actor_id: int, error: Exception) -> CallResult:
        self._healthy.discard(actor_id)
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        fix = "look at the worker's log; run the same job again to go on from its last checkpoint"
        message = explain(f"learner {actor_id}", got=f"a lost worker process ({reason})", fix=fix)
        return CallResult(actor_id, error=LearnerLostError(message))

    def release(self) -> None:
        """Let all actors go."""
        for handle in self.handles:
            handle.release()


def values(results: Sequence[CallResult]) -> list[Any]:
    """Return the values; raise the error that explains the others, if there is one.

    When one learner fails or hangs, its peers report a lost connection or a silent peer: the cause comes first.
    """
    errors = [result.error for result in results if result.error is not None]
    if errors:
        raise min(errors, key=_distance_from_cause)
    return [result.value for result in results]


def _distance_from_cause(error: Exception) -> int:
    if isinstance(error, LearnerLostError):
        return 3 if LOST_CONNECTION in str(error) else 1
    if isinstance(error, WaitTimeoutError):
        return 4 if SILENT_PEERS in str(error) else 2
    return 0


def start_actors(
    client: Client,
    arguments: Sequence[Sequence[Any]],
    *,
    num_gpus: float,
    workers_timeout: float,
    startup_timeout: float,
) -> ActorManager:
    """Start one actor a worker process; wait until all are constructed.

    Raises:
        ConfigError: too few workers, or too few with GPUs.
        WaitTimeoutError: an actor is not there in time.
        LearnerError: a worker cannot construct it.
        LearnerLostError: a worker died meanwhile.
    """
    addresses = _choose_workers(client, len(arguments), num_gpus, workers_timeout)
    resources = {"GPU": num_gpus} if num_gpus else {}
    handles = [DaskHandle(client, address, args, resources) for address, args in zip(addresses, arguments, strict=True)]
    manager = ActorManager(handles)
    deadline = time.monotonic() + startup_timeout
    try:
        for actor_id, handle in enumerate(handles):
            _await_start(actor_id, handle, deadline, startup_timeout)
    except BaseException:
        manager.release()
        raise
    return manager


def _await_start(actor_id: int, handle: DaskHandle, deadline: float, timeout: float) -> None:
    where = f"learner {actor_id} at {handle.address}, starting"
    try:
        handle.start(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        fix = "look at the worker's log, or raise learners.startup_timeout_seconds"
        raise WaitTimeoutError(explain(where, got=f"no actor in {timeout:g} s", fix=fix)) from None
    except LearnerLostError as error:
        fix = "look at the worker's log and memory, then run the same job again"
        raise LearnerLostError(explain(where, got=f"a lost worker process ({error})", fix=fix)) from None
    except (KilledWorker, CancelledError, ImportError, OSError, RuntimeError) as error:
        got = " ".join(f"{type(error).__name__}: {error}".split())
        fix = "install the same packages on the workers and the scheduler as here, and give the workers enough memory"
        raise LearnerError(explain(where, got=got, fix=fix)) from None


def _choose_workers(client: Client, num_learners: int, num_gpus: float, timeout: float) -> list[str]:
    deadline = time.monotonic() + timeout
    while True:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        usable = [a for a, info in workers.items() if info.get("resources", {}).get("GPU", 0) >= num_gpus]
        if num_learners > 1 and any(address.startswith("inproc://") for address in usable):
            raise ConfigError(
                explain(
                    "learners.num_learners",
                    got=f"{num_learners}, and workers that are threads of one process",
                    allowed="worker processes: one learner a process",
                    fix="start the cluster with processes=True, or use one learner",
                )
            )
        if len(usable) >= num_learners:
            order = sorted(usable, key=lambda address: (str(workers[address].get("name")), address))
            return order[:num_learners]
        if time.monotonic() >= deadline:
            break
        try:
            client.wait_for_workers(len(workers) + 1, timeout=max(0.1, deadline - time.monotonic()))
        except TimeoutError:
            break
    with_gpus = f" with {num_gpus:g} GPU each (cluster.kind=cuda starts such)" if num_gpus else ""
    raise ConfigError(
        explain(
            "learners.num_learners",
            got=f"{num_learners}, and {len(usable)} usable workers of {len(workers)}",
            allowed=f"one worker process a learner{with_gpus}",
            fix="start more workers or lower learners.num_learners",
        )
    )
