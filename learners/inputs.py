"""What an update call trains on, whatever form it is given in: shared out among learners, and counted."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from distributed import Future

from dask_rl.storage.errors import ConfigError, explain

from .batch import Batch, MultiBatch, as_multi_batch, num_rows
from .config import LearnerGroupConfig
from .dropped_rows import RowCount
from .episodes import AnyEpisode, agents_of, multi_batch_from_episodes
from .futures import cancelled
from .input_checks import check_count, check_list
from .iterator import Iterables, SharedData
from .splitting import UpdatePlan, plan_batch_update, plan_episode_update, split_contiguous

Fields = Mapping[str, Any]
"""Fields of an UpdateRequest."""


@dataclass(frozen=True)
class Passes:
    """How often, in what pieces and in what order rows that are given as such are gone through."""

    num_epochs: int = 1
    minibatch_size: int | None = None
    shuffle: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers that are none."""
        check_count("num_epochs", self.num_epochs)
        if self.minibatch_size is not None:
            check_count("minibatch_size", self.minibatch_size)

    def refuse_for_iterators(self) -> None:
        """Raise ConfigError unless it is the default: batches of an iterator are taken as they are."""
        if self != Passes():
            got, allowed = "num_epochs, minibatch_size or shuffle_batch_per_epoch", "num_iters"
            raise ConfigError(explain("iterators", got=got, allowed=allowed, fix="leave it out, or give a batch"))


@dataclass(frozen=True)
class UpdateInput:
    """The input of one update call."""

    shares: Callable[[int], Sequence[Fields]]
    """Returns the fields of each learner's request, for a number of learners."""
    count_rows: Callable[[], RowCount]
    """Begins to count the rows that the call would train on; does not wait for data."""
    shuffle: bool = False
    find_cancelled: Callable[[], str | None] = lambda: None
    """Returns the key of a future among it that was cancelled."""


def iterator_input(iterators: Any, num_iters: int, num_learners: int, iterables: Iterables) -> UpdateInput:
    """Return the input for iterators, one a learner, or for data that can be shared out among any number."""
    if isinstance(iterators, SharedData):
        data = iterators
        return UpdateInput(
            lambda size: [{"source": source, "num_iters": num_iters} for source in data.shares(size)],
            lambda: num_iters * data.rows_per_batch(),
        )
    check_list("iterators", iterators, "a list of iterators, one per learner")
    _check_one_each("iterators", iterators, num_learners)
    sources = iterables.sources(iterators)

    def shares(size: int) -> list[Fields]:
        _check_one_each("iterators", sources, size)
        return [{"source": source, "num_iters": num_iters} for source in sources]

    return UpdateInput(shares, lambda: iterables.count_rows(sources, num_iters))


def batch_input(batch: Batch | MultiBatch, passes: Passes, num_learners: int) -> UpdateInput:
    """Return the input for one batch."""
    given = as_multi_batch(batch)

    def plan(size: int) -> UpdatePlan:
        return plan_batch_update(given, size, passes.num_epochs, passes.minibatch_size)

    return _planned(plan, sum(num_rows(part) for part in given.values()), passes, num_learners)


def episode_input(
    episodes: Sequence[AnyEpisode], passes: Passes, num_learners: int, config: LearnerGroupConfig
) -> UpdateInput:
    """Return the input for episodes of one or more agents."""

    def plan(size: int) -> UpdatePlan:
        return plan_episode_update(
            episodes,
            size,
            passes.num_epochs,
            passes.minibatch_size,
            lookback=config.episode_lookback_horizon,
            discount_of=lambda module_id: config.algorithm_of(module_id).discount,
        )

    rows = sum(len(agent.episode) for episode in episodes for agent in agents_of(episode))
    return _planned(plan, rows, passes, num_learners)


def _planned(plan: Callable[[int], UpdatePlan], rows: int, passes: Passes, num_learners: int) -> UpdateInput:
    first = {num_learners: plan(num_learners)}  # what is wrong with the input is said before anything is counted

    def shares(size: int) -> list[Fields]:
        made = first.get(size) or plan(size)
        return [
            {
                "batch": made.batches[rank] if made.batches else None,
                "episodes": made.shares[rank] if made.shares else None,
                "num_minibatches": made.num_minibatches,
                "minibatch_size": passes.minibatch_size,
                "modules_to_skip": made.modules_to_skip,
            }
            for rank in range(size)
        ]

    return UpdateInput(shares, lambda: rows, passes.shuffle)


def future_input(futures: Sequence[Future], passes: Passes, num_learners: int, *, of_episodes: bool) -> UpdateInput:
    """Return the input for Dask futures: of a batch for each learner, or of lists of episodes to share out."""
    held = list(futures)  # here too, until the request has ended: their keys alone would not keep the values

    def shares(size: int) -> list[Fields]:
        if not of_episodes:
            _check_one_each("futures of batches", held, size)
        return [
            {
                "future_keys": tuple(future.key for future in mine),
                "futures_are_episodes": of_episodes,
                "num_minibatches": None,
                "num_epochs": passes.num_epochs,
                "minibatch_size": passes.minibatch_size,
            }
            for mine in split_contiguous(held, size)
        ]

    def find_cancelled() -> str | None:
        return next((str(future.key) for future in held if future.cancelled()), None)

    shares(num_learners)
    if (key := find_cancelled()) is not None:
        raise cancelled(key)
    return UpdateInput(shares, lambda: _count_later(held, of_episodes), passes.shuffle, find_cancelled)


def _count_later(futures: Sequence[Future], of_episodes: bool) -> Future:
    client = futures[0].client
    count = _count_steps if of_episodes else _count_batch
    return client.submit(sum, [client.submit(count, future, pure=False) for future in futures], pure=False)


def _count_steps(episodes: Iterable[AnyEpisode]) -> int:
    return sum(len(agent.episode) for episode in episodes for agent in agents_of(episode))


def _count_batch(batch: Mapping[str, Any]) -> int:
    return sum(num_rows(part) for part in as_multi_batch(batch).values())


class EpisodeBatches:
    """An iterable of episodes, or of lists of them, as one of batches."""

    def __init__(self, episodes: Iterable[Any], config: LearnerGroupConfig) -> None:
        """Wrap a re-iterable; each item becomes one batch."""
        self._episodes = episodes
        self._dtype = torch.float64 if config.learners.precision == "fp64" else torch.float32
        self._config = config

    def __iter__(self) -> Iterator[MultiBatch]:
        """Begin anew."""
        for item in self._episodes:
            episodes = [item] if isinstance(item, AnyEpisode) else item
            yield multi_batch_from_episodes(
                episodes, self._dtype, lambda module_id: self._config.algorithm_of(module_id).discount
            )


def are_futures(given: Any) -> bool:
    """Tell whether an input is a list of Dask futures."""
    return isinstance(given, Sequence) and len(given) > 0 and all(isinstance(item, Future) for item in given)


def _check_one_each(what: str, given: Sequence[Any], num_learners: int) -> None:
    if len(given) != num_learners:
        allowed = f"{num_learners}, one per learner"
        fix = "give one to each; to a group whose size changes give data that can be shared out (SharedData)"
        raise ConfigError(explain(what, got=len(given), allowed=allowed, fix=fix))
