"""GroupState: calls on all learners of a group, and their common state."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from .batch import ModuleID
from .checkpointable import Checkpointable, Components, State, select_state, to_arrays
from .config import LearnerGroupConfig
from .learner import Learner
from .manager import ActorManager, CallResult, values
from .module import MultiRLModuleSpec


class GroupState(Checkpointable):
    """What a learner group shares with all its learners: weights, optimizer state, counters."""

    config: LearnerGroupConfig
    module_spec: MultiRLModuleSpec
    _num_requests = 0
    _generation = 0

    @property
    @abstractmethod
    def manager(self) -> ActorManager:
        """The actors."""

    def __len__(self) -> int:
        """Return the number of learners."""
        return len(self.manager)

    def foreach_learner(
        self,
        func: Callable[..., Any],
        *,
        remote_actor_ids: Sequence[int] | None = None,
        timeout_seconds: float | None = None,
        **kwargs: Any,
    ) -> list[CallResult]:
        """Call func(learner, **kwargs) on each learner; results in order, each a value or an error.

        Args:
            func: at most once a learner; its failure is reported, not repeated.
            remote_actor_ids: which learners; None: all, []: none.
            timeout_seconds: for all together; None: `learners.update_timeout_seconds`.
            kwargs: passed on to func.
        """
        ids = range(len(self)) if remote_actor_ids is None else remote_actor_ids
        timeout = self.config.learners.update_timeout_seconds if timeout_seconds is None else timeout_seconds
        arguments = [(func, kwargs)] * len(ids)
        return self.manager.call("apply", arguments, timeout=timeout, stage="running a function", actor_ids=list(ids))

    def get_state(self, components: Components = None, *, not_components: Components = None) -> State:
        """Return learner 0's state under "learner", which all learners share; see LearnerState.get_state."""
        results = self.foreach_learner(_get_state, remote_actor_ids=[0])
        return select_state({"learner": results[0].get()}, components, not_components)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Give all learners the parts of a state that are there."""
        if "learner" in state:
            values(self.foreach_learner(_set_state, state=to_arrays(state["learner"])))
            counters = state["learner"].get("counters", {})
            # backwards too: the order of minibatches follows from the number
            self._num_requests = int(counters.get("weights_seq_no", self._num_requests))

    def get_weights(
        self, module_ids: Collection[ModuleID] | None = None, *, inference_only: bool = False
    ) -> dict[ModuleID, dict[str, torch.Tensor]]:
        """Return the weights by module id and parameter name."""
        ids = None if module_ids is None else sorted(module_ids)
        results = self.foreach_learner(
            _get_weights, remote_actor_ids=[0], module_ids=ids, inference_only=inference_only
        )
        weights: dict[ModuleID, dict[str, torch.Tensor]] = results[0].get()
        return weights

    def set_weights(self, weights: Mapping[ModuleID, Mapping[str, Any]]) -> None:
        """Give all learners these weights."""
        self.set_state({"learner": {"rl_module": weights}})

    def get_metadata(self) -> dict[str, Any]:
        """Return the class's name and the constructor's arguments as JSON values."""
        constructor = {
            "config": self.config.model_dump(mode="json"),
            "module_spec": self.module_spec.to_json(),
        }
        return {"class_name": "LearnerGroup", "constructor": constructor}

    def get_stats(self) -> dict[str, Any]:
        """Return healthy learners, update calls, restarts, and each learner's step."""
        steps = self.foreach_learner(_get_step, remote_actor_ids=self.manager.healthy_actor_ids)
        return {
            "num_learners": len(self),
            "num_healthy_learners": len(self.manager.healthy_actor_ids),
            "num_update_calls": self._num_requests,
            "generation": self._generation,
            "steps": {result.actor_id: result.value for result in steps if result.ok},
        }


def _get_state(learner: Learner) -> State:
    state: State = to_arrays(learner.get_state())
    return state


def _set_state(learner: Learner, state: Mapping[str, Any]) -> None:
    learner.set_state(state)


def _get_weights(learner: Learner, module_ids: list[ModuleID] | None, inference_only: bool) -> Any:
    return learner.module.get_state(module_ids, inference_only=inference_only)


def _get_step(learner: Learner) -> int:
    return learner.step
