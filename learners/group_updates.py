"""GroupUpdates: the update calls of a learner group, each turned into one request for every learner."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dask_rl.storage.errors import ConfigError, explain

from .batch import Batch, MultiBatch
from .dispatcher import Admitted
from .episodes import AnyEpisode
from .group_state import GroupState
from .input_checks import check_count, check_iterables, check_list, check_names
from .inputs import (
    EpisodeBatches,
    Passes,
    UpdateInput,
    are_futures,
    batch_input,
    episode_input,
    future_input,
    iterator_input,
)
from .iterator import BatchSource, Iterables, SharedData
from .layout_checks import check_episodes, checked_batch
from .metrics import Result
from .request import UpdateRequest

Results = list[Result]
"""One result per learner: metrics by module id, and "all_modules"."""
_OF_PASSES = {"num_epochs", "minibatch_size", "shuffle_batch_per_epoch"}
Iterators = Sequence[BatchSource | Iterable[Batch | MultiBatch]] | SharedData


class GroupUpdates(GroupState):
    """Updates from batches, episodes and iterators, given directly or as Dask futures; waited for or not.

    Every update call takes these keywords:
        timesteps: counters of the caller, passed on to the learners' hooks.
        return_state: whether learner 0's result carries the updated modules' inference-only weights.
        async_update: do not wait. The request is sent if every learner has room for it
            (`learners.max_requests_in_flight_per_learner`), else to none, and its rows are counted as dropped. Returns
            a list of lists: the results of the earlier asynchronous calls that are ready, an inner list for each. An
            error of one of them is raised, and the present call not sent.
        any other: passed on to the learners' hooks.
    """

    _iterables: Iterables

    def update_from_iterators(self, iterators: Iterators, *, num_iters: int, **options: Any) -> Any:
        """Take `num_iters` steps on every learner, each from its own iterator.

        Args:
            iterators: one a learner, or data that can be shared out among any number of them, as an elastic group
                needs. A BatchSource is opened once in the learner's process and stays open; any other iterable of
                batches is sent to it, and starts again when it is exhausted. The same ones go on where the last
                call stopped, others begin anew.
            num_iters: steps to take.
            options: see the class.

        Returns:
            One result per learner, or for async_update such lists of earlier calls.
        """
        if misplaced := sorted(options.keys() & _OF_PASSES):
            allowed = "num_iters: batches of an iterator are taken as they are"
            raise ConfigError(explain("iterators", got=misplaced, allowed=allowed, fix="leave it out"))
        if check_count("num_iters", num_iters) < 1:
            raise ConfigError(explain("num_iters", got=num_iters, allowed="at least 1", fix="correct it"))
        return self._update(
            lambda: iterator_input(iterators, num_iters, len(self), self._iterables), num_iters=num_iters, **options
        )

    def update_from_batch(
        self,
        batch: Batch | MultiBatch | Sequence[Any],
        *,
        num_epochs: int = 1,
        num_iters: int | None = None,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        **options: Any,
    ) -> Any:
        """Update from one batch, split evenly among the learners.

        Args:
            batch: rows of the one module, or by module id. Split into contiguous parts that differ by at most one
                row; a module of which some learner would get no row is left out, on all learners, and counted. Or a
                list of Dask futures of batches, one a learner; or a list of iterators, one a learner.
            num_epochs: passes over the batch; for all but iterators, as the last two are.
            num_iters: steps to take, for iterators only.
            minibatch_size: rows per module, learner and step; None: all.
            shuffle_batch_per_epoch: whether each pass takes the rows in a new order.
            options: see the class.

        Returns:
            One result per learner, or for async_update such lists of earlier calls.
        """
        passes = Passes(num_epochs, minibatch_size, shuffle_batch_per_epoch)
        if isinstance(batch, Mapping):
            _refuse_num_iters(num_iters)
            given = checked_batch(batch, self.module_spec)
            return self._update(lambda: batch_input(given, passes, len(self)), **options)
        if are_futures(batch):
            _refuse_num_iters(num_iters)
            return self._update(lambda: future_input(batch, passes, len(self), of_episodes=False), **options)
        check_list("batch", batch, "a batch, or a list of futures or iterators, one per learner")
        passes.refuse_for_iterators()
        return self.update_from_iterators(batch, num_iters=_required(num_iters), **options)

    def update_from_episodes(
        self,
        episodes: Sequence[Any],
        *,
        num_epochs: int = 1,
        num_iters: int | None = None,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        **options: Any,
    ) -> Any:
        """Update from episodes, the longest first to the least loaded learner, cut where that has enough.

        Args:
            episodes: a list of Episode or MultiAgentEpisode; or of Dask futures of lists of them, shared out
                contiguously; or of iterators over them, one a learner.
            num_epochs: passes over the episodes; for all but iterators, as the last two are.
            num_iters: steps to take, for iterators only.
            minibatch_size: rows per module, learner and step; None: all.
            shuffle_batch_per_epoch: whether each pass takes the rows in a new order.
            options: see the class.

        Returns:
            One result per learner, or for async_update such lists of earlier calls.
        """
        passes = Passes(num_epochs, minibatch_size, shuffle_batch_per_epoch)
        if are_futures(episodes):
            _refuse_num_iters(num_iters)
            return self._update(lambda: future_input(episodes, passes, len(self), of_episodes=True), **options)
        check_list("episodes", episodes, "a list of episodes, or of futures or iterators of them")
        if episodes and not isinstance(episodes[0], AnyEpisode) and isinstance(episodes[0], Iterable):
            check_iterables(dict(enumerate(episodes)))
            passes.refuse_for_iterators()
            batches = self._iterables.wrapped(episodes, lambda given: EpisodeBatches(given, self.config))
            return self.update_from_iterators(batches, num_iters=_required(num_iters), **options)
        _refuse_num_iters(num_iters)
        check_episodes(episodes, self.module_spec)
        return self._update(lambda: episode_input(episodes, passes, len(self), self.config), **options)

    def update(self, *, batch: Any = None, episodes: Any = None, iterators: Any = None, **options: Any) -> Any:
        """Do what `update_from_batch`, `update_from_episodes` or `update_from_iterators` does; deprecated."""
        message = "use update_from_batch, update_from_episodes or update_from_iterators"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self._update_from_any(batch, episodes, iterators, options)

    def async_update(self, *, batch: Any = None, episodes: Any = None, iterators: Any = None, **options: Any) -> Any:
        """Do what the other update methods do with async_update=True; deprecated."""
        message = "use update_from_batch(…, async_update=True) and the like"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self._update_from_any(batch, episodes, iterators, {"async_update": True, **options})

    def _update_from_any(self, batch: Any, episodes: Any, iterators: Any, options: Mapping[str, Any]) -> Any:
        methods: dict[str, Callable[..., Any]] = {
            "batch": self.update_from_batch,
            "episodes": self.update_from_episodes,
            "iterators": self.update_from_iterators,
        }
        inputs = {"batch": batch, "episodes": episodes, "iterators": iterators}
        given = [name for name, value in inputs.items() if value is not None]
        if len(given) != 1:
            allowed = "exactly one of batch, episodes, iterators"
            raise ConfigError(explain("update", got=given or "no input", allowed=allowed, fix="give one"))
        return methods[given[0]](inputs[given[0]], **options)

    def collect_async_results(self, timeout_seconds: float = 0.0) -> list[Results]:
        """Return the results of asynchronous calls that are ready, an inner list for each call.

        Args:
            timeout_seconds: wait until all of them are ready, at most so long.

        Raises:
            WaitTimeoutError: they are not; what is ready stays for the next call.
            Exception: that of an asynchronous call.
        """
        if timeout_seconds > 0:
            self.dispatcher.drain(timeout_seconds)
        else:
            self.dispatcher.advance(0.0)
        return self.dispatcher.collect()

    def _update(
        self,
        make_input: Callable[[], UpdateInput],
        *,
        timesteps: Mapping[str, Any] | None = None,
        return_state: bool = False,
        async_update: bool = False,
        num_iters: int = 0,
        **kwargs: Any,
    ) -> Any:
        """Carry out one request a learner, or only begin with it."""
        dispatcher = self.dispatcher
        check_names("timesteps", {} if timesteps is None else timesteps, "counters by name")
        if async_update and self.is_local:
            allowed = "learners on workers of their own (learners.num_learners of 1 or more)"
            raise ConfigError(explain("async_update", got="a local learner", allowed=allowed, fix="leave it out"))
        ready: list[Results] = []
        if async_update:
            dispatcher.advance(0.0)
            ready = dispatcher.collect()  # an earlier call's error: this one is not sent then
        dispatcher.make_whole()
        if not dispatcher.num_open:
            self.crew.grow()
        given = make_input()
        if async_update and not dispatcher.has_room:
            self._num_dropped_requests += 1
            self._dropped_rows.add(given.count_rows())
            return ready
        common = {"timesteps": timesteps or {}, "kwargs": kwargs}
        entry = self._admit(given, common, return_state=return_state, is_async=async_update)
        self._iterables.taken += num_iters
        if async_update:
            return ready
        return dispatcher.wait(entry, self.config.learners.update_timeout_seconds)

    def _admit(self, given: UpdateInput, common: Mapping[str, Any], *, return_state: bool, is_async: bool) -> Admitted:
        self._num_requests = number = self._num_requests + 1
        shuffle_seed = self.config.seed + number if given.shuffle else None

        def make(size: int) -> list[UpdateRequest]:
            return [
                UpdateRequest(
                    number, shuffle_seed=shuffle_seed, return_state=return_state and rank == 0, **common, **fields
                )
                for rank, fields in enumerate(given.shares(size))
            ]

        entry = Admitted(number, make, is_async, find_cancelled=given.find_cancelled)
        self.dispatcher.admit(entry)
        return entry


def _refuse_num_iters(num_iters: int | None) -> None:
    if num_iters is not None:
        fix = "say with num_epochs and minibatch_size how many steps to take"
        raise ConfigError(explain("num_iters", got=f"{num_iters} without iterators", allowed="none", fix=fix))


def _required(num_iters: int | None) -> int:
    if num_iters is None:
        raise ConfigError(explain("num_iters", got="nothing", allowed="a number of steps", fix="give it to iterators"))
    return num_iters
