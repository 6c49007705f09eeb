"""GroupState: calls on all learners of a group, and their common state."""

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from dask_rl.storage.errors import (
    CheckpointError,
    ConfigError,
    LearnerLostError,
    PeersLostError,
    RestartLimitError,
    WaitTimeoutError,
    WorkersMissingError,
    explain,
)

from .batch import ModuleID
from .checkpointable import Checkpointable, Components, State, describe, select_state, to_arrays
from .config import LearnerGroupConfig
from .crew import Crew
from .dispatcher import Dispatcher
from .dropped_rows import DroppedRows
from .events import GroupEvent
from .handles import LOST
from .input_checks import check_ranks
from .learner import Learner
from .manager import ActorManager, CallResult, values
from .module import MultiRLModuleSpec
from .state_values import as_mapping, as_parts

MAX_NUMBER = 2**62
"""Of an update request; the next ones, and seeds with it, are 64-bit numbers too."""
_COUNTING_SECONDS = 1.0
_LEAST_SECONDS = 0.001
"""What is left for a call at its time limit; 0 would not wait at all."""
_REFUSALS = (ConfigError, CheckpointError)
"""What a learner checks before it changes anything."""


class GroupState(Checkpointable):
    """What a learner group shares with all its learners: weights, optimizer state, counters."""

    config: LearnerGroupConfig
    module_spec: MultiRLModuleSpec
    _num_requests: int
    _num_dropped_requests: int
    _dropped_rows: DroppedRows

    @property
    def crew(self) -> Crew:
        """The learners' actors; raises ConfigError after `shutdown`."""
        raise NotImplementedError

    @property
    def dispatcher(self) -> Dispatcher:
        """The update requests under way; raises ConfigError after `shutdown`."""
        raise NotImplementedError

    @property
    def manager(self) -> ActorManager:
        """The actors."""
        return self.crew.manager

    @property
    def is_local(self) -> bool:
        """Whether the one learner lives in this process."""
        return self.config.learners.num_learners == 0

    @property
    def is_remote(self) -> bool:
        """Whether the learners live on Dask workers."""
        return not self.is_local

    def __len__(self) -> int:
        """Return the number of learners."""
        return len(self.crew)

    def foreach_learner(
        self,
        func: Callable[..., Any],
        *,
        healthy_only: bool = True,
        remote_actor_ids: Sequence[int] | None = None,
        timeout_seconds: float | None = None,
        return_futures: bool = False,
        mark_healthy: bool = False,
        **kwargs: Any,
    ) -> list[CallResult]:
        """Call func(learner, **kwargs) on each learner; results in the order of the ids, each a value or an error.

        It runs after the updates that were asked for before, also where these are repeated after a loss; where it
        does not wait it is sent behind them, and may then run in the middle of one that is repeated. At most once a
        learner: its failure is reported, not repeated, and leaves the others as they are.

        Args:
            func: what to call; what it changes it must change on all learners alike.
            healthy_only: leave out learners that were lost.
            remote_actor_ids: which learners; None: all, []: none.
            timeout_seconds: for all together; a time-out is no ill health. 0.0: do not wait, return nothing.
                None: `learners.update_timeout_seconds`.
            return_futures: do not wait; each value is an object with `done()` and `result(timeout)`.
            mark_healthy: take lost learners that answer for healthy again.
            kwargs: passed on to func.
        """
        timeout = self.config.learners.update_timeout_seconds if timeout_seconds is None else timeout_seconds
        left, late = timeout, None
        if self.dispatcher.num_open and timeout > 0 and not return_futures:
            deadline = time.monotonic() + timeout
            try:
                self.dispatcher.drain(timeout)
            except WaitTimeoutError as error:
                late = error
            left = max(deadline - time.monotonic(), _LEAST_SECONDS)
        ids = check_ranks("remote_actor_ids", remote_actor_ids, len(self))
        if healthy_only:
            ids = [actor_id for actor_id in ids if actor_id not in self.manager.lost]
        if late is not None:
            return [CallResult(actor_id, error=late) for actor_id in ids]
        arguments, stage = [(func, kwargs)] * len(ids), "running a function"
        if return_futures:
            started = self.manager.start("apply", arguments, stage=stage, actor_ids=ids)
            return [CallResult(call.actor_id, value=call) for call in started]
        results = self.crew.call("apply", arguments, timeout=left, stage=stage, actor_ids=ids)
        for result in results:
            if mark_healthy and not isinstance(result.error, LearnerLostError | WaitTimeoutError):
                self.manager.restore(result.actor_id)
        return results

    def _on_all(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """Call an idempotent function on all learners between two updates; again, where one was lost on the way."""
        return values(self._try_on_all(func, **kwargs))

    def _try_on_all(self, func: Callable[..., Any], **kwargs: Any) -> list[CallResult]:
        """Do what `_on_all` does; where only some may have carried it out, all meet before the next update."""
        timeout = self.config.learners.update_timeout_seconds
        while True:
            self.dispatcher.drain(timeout)
            arguments = [(func, kwargs)] * len(self)
            try:
                results = self.crew.call("apply", arguments, timeout=timeout, stage="running a function")
            except BaseException:
                self.crew.is_broken = True
                raise
            errors = [result.error for result in results if result.error is not None]
            if self.manager.lost:
                continue
            if errors and not (len(errors) == len(results) and all(isinstance(error, _REFUSALS) for error in errors)):
                self.crew.is_broken = True
            return results

    def _on_one(self, func: Callable[..., Any], **kwargs: Any) -> Any:
        """Call a function that only reads on one learner; on one that is left, where lost ones cannot be replaced."""
        timeout = self.config.learners.update_timeout_seconds
        while True:
            try:
                self.dispatcher.drain(timeout)
            except (WorkersMissingError, RestartLimitError):
                if not self.manager.healthy_actor_ids:
                    raise
            result = self._ask_holder(func, **kwargs)
            if not isinstance(result.error, LearnerLostError):
                return result.get()

    def _ask_holder(self, func: Callable[..., Any], **kwargs: Any) -> CallResult:
        """Call a function that only reads on a learner that knows the state."""
        place: dict[str, Any] = {"timeout": self.config.learners.update_timeout_seconds, "stage": "reading state"}
        place["actor_ids"] = [self.crew.holder]
        if self.crew.is_broken:  # a change of modules may not have come to it yet
            self.crew.call("build", [(self.crew.blueprint(), False)], **place)
        [result] = self.crew.call("apply", [(func, kwargs)], **place)
        return result

    def get_state(self, components: Components = None, *, not_components: Components = None) -> State:
        """Return the learners' common state under "learner"; see LearnerState.get_state."""
        return select_state({"learner": self._on_one(_get_state)}, components, not_components)

    def part_names(self) -> set[tuple[str, ...]]:
        """Return the paths of all that a whole state holds."""
        return {("learner", *name) for name in self._on_one(Learner.part_names)}

    def get_surviving_state(self) -> State:
        """Return the state as a learner that is left knows it, without any repair: after an error of `update_…`.

        Raises:
            LearnerLostError: nobody is left.
        """
        return {"learner": self._ask_holder(_get_state).get()}

    def set_state(self, state: Mapping[str, Any], *, force: bool = True) -> None:
        """Give all learners the parts of a state that are there.

        Args:
            state: as `get_state` returns it.
            force: False takes nothing of a state whose weights are older, by their sequence number, than the present.
        """
        learner = as_mapping("learner", as_parts("state", state, ("learner",)).get("learner"))
        before, number = self._num_requests, as_mapping("counters", learner.get("counters", {})).get("weights_seq_no")
        if isinstance(number, int) and 0 <= number <= MAX_NUMBER:
            # Learners may take it although nobody waits for them any more; a later request is none of these.
            self._num_requests = max(before, number)
        try:
            numbers = self._on_all(_set_state, state=to_arrays(learner), force=force)
        except _REFUSALS:
            if not self.crew.is_broken:
                self._num_requests = before
            raise
        # backwards too: the order of minibatches follows from the number
        self._num_requests = numbers[0]

    def get_weights(
        self, module_ids: Collection[ModuleID] | None = None, *, inference_only: bool = False
    ) -> dict[ModuleID, dict[str, torch.Tensor]]:
        """Return the weights by module id and parameter name."""
        ids = None if module_ids is None else sorted(module_ids)
        weights: dict[ModuleID, dict[str, torch.Tensor]] = self._on_one(
            _get_weights, module_ids=ids, inference_only=inference_only
        )
        return weights

    def set_weights(
        self,
        weights: Mapping[ModuleID, Mapping[str, Any]],
        *,
        weights_seq_no: int | None = None,
        force: bool = False,
    ) -> bool:
        """Give all learners these weights; return whether they were taken.

        Args:
            weights: by module id and parameter name.
            weights_seq_no: number of the update call that made them; older ones than the learners' are not taken.
            force: take them anyway.
        """
        arrays = to_arrays({id_: as_mapping(id_, named) for id_, named in as_mapping("weights", weights).items()})
        taken = self._on_all(_set_weights, weights=arrays, weights_seq_no=weights_seq_no, force=force)
        return all(taken)

    def get_metadata(self) -> dict[str, Any]:
        """Return the class's name and the constructor's arguments as JSON values."""
        return describe("LearnerGroup", self.config, self.module_spec)

    def get_stats(self) -> dict[str, Any]:
        """Return health, progress, restarts, and what asynchronous calls were dropped.

        Waits neither for updates nor for data: dropped requests of which the rows are not known yet are
        `num_uncounted_requests`, and counted by a later call. The rows of plain iterables are counted here, for at
        most a second a call; each batch is looked at once.
        """
        num_rows, num_uncounted = self._dropped_rows.count(_COUNTING_SECONDS)
        steps = {}
        for actor_id in self.manager.healthy_actor_ids:
            with contextlib.suppress(*LOST):  # silent or gone: what becomes of it is for the updates to say
                report = self.manager.handles[actor_id].ask_health()
                steps[actor_id] = report.result(self.config.learners.health_timeout_seconds).step
        return {
            "num_learners": len(self),
            "num_healthy_learners": len(self.manager.healthy_actor_ids),
            "num_update_calls": self._num_requests,
            "num_requests_in_flight": self.dispatcher.num_open,
            "num_lost_requests": self.dispatcher.num_lost,
            "num_dropped_requests": self._num_dropped_requests,
            "num_dropped_rows": num_rows,
            "num_uncounted_requests": num_uncounted,
            "num_restarts": self.crew.num_restarts,
            "generation": self.crew.generation,
            "steps": steps,
        }

    @property
    def events(self) -> list[GroupEvent]:
        """What befell the group so far: lost learners, repairs, changes of size."""
        return self.crew.events


def _get_state(learner: Learner) -> State:
    if not learner.knows_state:  # saved, it would be taken for whole
        got, fix = "half a copy of a peer's", "ask another learner, or go on from the last checkpoint"
        raise PeersLostError(explain("learner's state", got=got, fix=fix))
    state: State = to_arrays(learner.get_state())
    return state


def _set_state(learner: Learner, state: Mapping[str, Any], force: bool) -> int:
    learner.set_state(state, force=force)
    return learner.weights_seq_no


def _get_weights(learner: Learner, module_ids: list[ModuleID] | None, inference_only: bool) -> Any:
    return learner.module.get_state(module_ids, inference_only=inference_only)


def _set_weights(learner: Learner, weights: Any, weights_seq_no: int | None, force: bool) -> bool:
    return learner.set_weights(weights, weights_seq_no=weights_seq_no, force=force)
