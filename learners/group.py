"""LearnerGroup: one or many learners that take every step together."""

import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster, get_client

from dask_rl.storage.checkpoint import load_metadata
from dask_rl.storage.errors import CheckpointError, ConfigError, LearnerLostError, explain

from .actor import LearnerActor
from .algorithms.registry import parse_algorithm
from .batch import Batch, MultiBatch, as_multi_batch
from .config import LearnerGroupConfig
from .episodes import AnyEpisode
from .group_state import GroupState
from .handles import LocalHandle
from .iterator import BatchSource, Iterables
from .learner import Learner
from .manager import ActorManager, start_actors, values
from .metrics import Result
from .module import MultiRLModuleSpec, RLModuleSpec
from .request import UpdateRequest
from .splitting import UpdatePlan, plan_batch_update, plan_episode_update


class LearnerGroup(GroupState):
    """A group of learners with equal weights, each on its own worker, or one in this process.

    Args:
        config: the algorithm, the learners, the seed; copied.
        module_spec: the spaces (and module class) of each module.
        client: the Dask client to use. None: the current default client, else workers of the group's own.
        learner_class: a subclass of Learner with stages of your own.

    Raises:
        ConfigError: no module, or not enough workers or GPUs.
        WaitTimeoutError: the learners do not come up in time.
    """

    def __init__(
        self,
        config: LearnerGroupConfig,
        *,
        module_spec: MultiRLModuleSpec | RLModuleSpec,
        client: Client | None = None,
        learner_class: type[Learner] = Learner,
    ) -> None:
        self._owned = ExitStack()
        self._manager: ActorManager | None = None
        self.module_spec = MultiRLModuleSpec.of(module_spec)
        if not self.module_spec.modules:
            raise ConfigError(explain("module_spec", got="no module", allowed="at least one", fix="give it a module"))
        resolved = config.learners.resolved(config.num_steps)
        self.config = config.model_copy(update={"learners": resolved}, deep=True)
        self._must_join = True
        self._iterables = Iterables()
        try:
            self._manager = self._start(client, learner_class)
            self._owned.callback(self._manager.release)
            self._manager.call_all("build", timeout=resolved.startup_timeout_seconds, stage="building")
            self._join()
        except BaseException:
            self.shutdown()
            raise

    def _start(self, client: Client | None, learner_class: type[Learner]) -> ActorManager:
        settings = self.config.learners
        size = max(1, settings.num_learners)
        arguments = [(self.config, self.module_spec, rank, size, learner_class) for rank in range(size)]
        if self.is_local:
            return ActorManager([LocalHandle(LearnerActor(*arguments[0]))])
        return start_actors(
            client or self._find_client(),
            arguments,
            num_gpus=settings.num_gpus_per_learner,
            workers_timeout=settings.workers_timeout_seconds,
            startup_timeout=settings.startup_timeout_seconds,
        )

    def _find_client(self) -> Client:
        try:
            return get_client()
        except ValueError:
            cluster = LocalCluster(
                n_workers=self.config.learners.num_learners,
                threads_per_worker=1,
                processes=True,
                dashboard_address="127.0.0.1:0",
                # A paused worker runs actor methods but no tasks; spilled blocks come back slowly.
                config={f"distributed.worker.memory.{name}": False for name in ("target", "spill", "pause")},
            )
            self._owned.enter_context(cluster)
            return self._owned.enter_context(Client(cluster))

    @property
    def manager(self) -> ActorManager:
        """The actors; raises ConfigError after `shutdown`."""
        if self._manager is None:
            raise ConfigError(explain("learner group", got="a call after shutdown", fix="make a new LearnerGroup"))
        return self._manager

    @property
    def is_local(self) -> bool:
        """Whether the one learner lives in this process."""
        return self.config.learners.num_learners == 0

    @property
    def is_remote(self) -> bool:
        """Whether the learners live on Dask workers."""
        return not self.is_local

    def _join(self) -> None:
        """Form the next generation: all learners meet and take over rank 0's state."""
        lost = sorted(set(range(len(self))) - set(self.manager.healthy_actor_ids))
        if lost:  # the others would wait for them
            fix = "shut the group down and make a new one from its last checkpoint"
            raise LearnerLostError(explain("learner group", got=f"lost learners {lost}", fix=fix))
        timeout = self.config.learners.startup_timeout_seconds
        rendezvous = None
        if len(self.manager) > 1:
            self._generation += 1
            opened = self.manager.call(
                "open_store", [(self._generation,)], timeout=timeout, stage="rendezvous", actor_ids=[0]
            )
            rendezvous = values(opened)[0]
        self.manager.call_all("join", rendezvous, timeout=timeout, stage="joining")
        if self._generation > 1:  # after a failure learners may stand at different batches
            steps = self.foreach_learner(lambda learner: learner.iterator_steps, remote_actor_ids=[0])[0].get()
            values(self.foreach_learner(lambda learner: learner.iterator_steps.update(steps)))
        self._must_join = False

    # -- updates -------------------------------------------------------------------------------------------------

    def update_from_iterators(
        self,
        iterators: Sequence[BatchSource | Iterable[Batch | MultiBatch]],
        *,
        num_iters: int,
        timesteps: Mapping[str, Any] | None = None,
        return_state: bool = False,
    ) -> list[Result]:
        """Take `num_iters` steps on every learner, each from its own iterator.

        Args:
            iterators: one a learner. A BatchSource is opened once in the learner's process and stays open; any
                other iterable of batches is sent to it, and starts again when it is exhausted. The same ones go on
                where the last call stopped, others begin anew.
            num_iters: steps to take.
            timesteps: counters of the caller, passed on to the learner's hooks.
            return_state: whether learner 0's result carries the updated modules' inference-only weights.

        Returns:
            One result per learner: metrics by module id, and "all_modules".
        """
        if len(iterators) != len(self):
            allowed = f"{len(self)}, one per learner"
            raise ConfigError(explain("iterators", got=len(iterators), allowed=allowed, fix="give one to each"))
        sources, number = self._iterables.sources(iterators), self._next_number()
        return self._run(
            [
                UpdateRequest(
                    number,
                    source=source,
                    num_iters=num_iters,
                    return_state=return_state and rank == 0,
                    timesteps=timesteps or {},
                )
                for rank, source in enumerate(sources)
            ]
        )

    def update_from_batch(
        self,
        batch: Batch | MultiBatch,
        *,
        timesteps: Mapping[str, Any] | None = None,
        return_state: bool = False,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
    ) -> list[Result]:
        """Update from one batch, split evenly among the learners.

        Args:
            batch: rows of the one module, or by module id. Split into contiguous parts that differ by at most one row;
                a module of which some learner would get no row is left out, on all learners, and counted.
            timesteps: counters of the caller, passed on to the learner's hooks.
            return_state: whether learner 0's result carries the updated modules' inference-only weights.
            num_epochs: passes over the batch.
            minibatch_size: rows per module, learner and step; None: all.
            shuffle_batch_per_epoch: whether each pass takes the rows in a new order.
        """
        plan = plan_batch_update(as_multi_batch(batch), len(self), num_epochs, minibatch_size)
        return self._run_plan(plan, timesteps, return_state, minibatch_size, shuffle_batch_per_epoch)

    def update_from_episodes(
        self,
        episodes: Sequence[AnyEpisode],
        *,
        timesteps: Mapping[str, Any] | None = None,
        return_state: bool = False,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
    ) -> list[Result]:
        """Update from whole episodes, the longest first to the least loaded; as `update_from_batch`."""
        plan = plan_episode_update(
            episodes,
            len(self),
            num_epochs,
            minibatch_size,
            lookback=self.config.episode_lookback_horizon,
            discount_of=lambda module_id: self.config.algorithm_of(module_id).discount,
        )
        return self._run_plan(plan, timesteps, return_state, minibatch_size, shuffle_batch_per_epoch)

    def _run_plan(
        self,
        plan: UpdatePlan,
        timesteps: Mapping[str, Any] | None,
        return_state: bool,
        minibatch_size: int | None,
        shuffle: bool,
    ) -> list[Result]:
        number = self._next_number()
        return self._run(
            [
                UpdateRequest(
                    number,
                    batch=plan.batches[rank] if plan.batches else None,
                    episodes=plan.shares[rank] if plan.shares else None,
                    num_minibatches=plan.num_minibatches,
                    minibatch_size=minibatch_size,
                    shuffle_seed=self.config.seed + number if shuffle else None,
                    modules_to_skip=plan.modules_to_skip,
                    return_state=return_state and rank == 0,
                    timesteps=timesteps or {},
                )
                for rank in range(len(self))
            ]
        )

    def _next_number(self) -> int:
        self._num_requests += 1
        return self._num_requests

    def _run(self, requests: Sequence[UpdateRequest]) -> list[Result]:
        """Carry out one request a learner; a learner's error leaves the others usable for the next call."""
        if self._must_join:
            self._join()
        arguments = [(request,) for request in requests]
        timeout = self.config.learners.update_timeout_seconds
        # Until all have answered the ranks may disagree, also where an interrupt ends the wait.
        self._must_join = len(self) > 1
        results: list[Result] = values(self.manager.call("run", arguments, timeout=timeout, stage="updating"))
        self._must_join = False
        return results

    @classmethod
    def from_checkpoint(cls, path: str | Path, **overrides: Any) -> "LearnerGroup":
        """Build a group from a checkpoint; `overrides` replace arguments of the constructor.

        Raises:
            CheckpointError: it is missing, damaged or foreign.
            ConfigError: it names an algorithm or module class that is not registered.
        """
        metadata = load_metadata(path)
        if metadata.get("class_name") != "LearnerGroup":
            got = f"a checkpoint of {metadata.get('class_name')!r}"
            raise CheckpointError(explain(str(path), got=got, allowed="one of a LearnerGroup", fix="choose another"))
        constructor = metadata["constructor"]
        if "config" not in overrides:
            config = constructor["config"]
            algorithm = parse_algorithm(config["algorithm"])  # its errors are ConfigErrors, pydantic would wrap them
            overrides["config"] = LearnerGroupConfig.model_validate(config | {"algorithm": algorithm})
        if "module_spec" not in overrides:
            overrides["module_spec"] = MultiRLModuleSpec.from_json(constructor["module_spec"])
        group = cls(overrides.pop("config"), **overrides)
        try:
            group.restore_from_path(path)
        except BaseException:
            group.shutdown()
            raise
        return group

    def shutdown(self) -> None:
        """Close learners and owned workers; nothing stays behind. May be called again."""
        manager, self._manager = self._manager, None
        with self._owned:  # let go of, whatever becomes of the call
            if manager is not None:
                healthy = manager.healthy_actor_ids
                manager.call("close", [()] * len(healthy), timeout=10, stage="closing", actor_ids=healthy)

    def __enter__(self) -> "LearnerGroup":
        """Return the group."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        """Shut down."""
        self.shutdown()
