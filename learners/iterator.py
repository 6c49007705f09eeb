"""What a learner needs of its data: an iterator, and a recipe that opens one in the learner's process."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from dask_rl.storage.errors import ConfigError, explain

from .batch import Batch, MultiBatch, as_multi_batch, num_rows
from .input_checks import check_iterables


class BatchIterator(Protocol):
    """An endless stream of one learner's parts of the global batches, seekable by step."""

    step: int
    """Number of batches delivered since step 0 of the run."""
    shards: tuple[int, ...]
    """The data shards that make up each batch, in order; noise is keyed by them."""
    rows_per_shard: int
    """Rows that each data shard gives to each batch."""
    is_aligned: bool
    """Whether all learners' batches of a step hold the same modules, each with rows; else they agree on them."""

    def next_batch(self) -> Batch | MultiBatch:
        """Return the next batch. Its tensors are views of reused buffers, valid until the next call."""
        ...

    def seek(self, step: int) -> None:
        """Make the next batch that of `step`, exactly, without replaying."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the step and the parameters of the order, as JSON values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Seek to a saved step; raise ConfigError where the parameters of the order differ."""
        ...

    def close(self) -> None:
        """End its threads and free its buffers."""
        ...


@runtime_checkable
class BatchSource(Protocol):
    """A picklable recipe for a BatchIterator; opened once, in the learner's process."""

    @property
    def key(self) -> str:
        """Name under which the learner keeps the open iterator between calls."""
        ...

    def open(self, device: torch.device, timeout_seconds: float) -> BatchIterator:
        """Open the iterator; waits for data at most `timeout_seconds` at a time."""
        ...

    def continues(self, previous: "BatchSource") -> bool:
        """Tell whether it is the same stream as `previous`, of other shards perhaps: it goes on at the same step."""
        ...

    def count_rows(self, first: int, count: int) -> int:
        """Return the rows of the batches `first` to `first + count`, exclusive."""
        ...


@runtime_checkable
class SharedData(Protocol):
    """Data that can be shared out anew among another number of learners; what an elastic group needs."""

    def shares(self, num_learners: int) -> Sequence[BatchSource]:
        """Return a source for each learner; together they give the same global batches for any number."""
        ...

    def rows_per_batch(self) -> int:
        """Return the rows of a global batch, all modules together."""
        ...


class IterableSource:
    """A BatchSource over any re-iterable of batches: an exhausted one starts its next epoch."""

    def __init__(
        self, batches: Iterable[Batch | MultiBatch], key: str, version: int = 0, rank: int | None = None
    ) -> None:
        """Wrap `batches`, which must be picklable to reach a learner in another process.

        Args:
            batches: the iterable.
            key: its name.
            version: stands for the caller's object, of which a copy may travel; another one replaces the iterator.
            rank: the learner whose it is, for messages.
        """
        self._batches = batches
        self.key = key
        self._version = version
        self._subject = repr(key) if rank is None else f"of learner {rank}"

    def __eq__(self, other: object) -> bool:
        """Tell whether key and version are the same."""
        return isinstance(other, IterableSource) and (self.key, self._version) == (other.key, other._version)

    def __hash__(self) -> int:
        return hash((self.key, self._version))

    def continues(self, previous: BatchSource) -> bool:
        """Tell whether it is the very same one."""
        return self == previous

    def count_rows(self, first: int, count: int) -> int:
        """Return the rows of some batches; goes through the iterable."""
        return sum(RowTally(self._batches).count(first, count))

    def open(self, device: torch.device, timeout_seconds: float) -> "IterableIterator":
        """Open it; an iterable is never waited for."""
        return IterableIterator(self._batches, self._subject)


class RowTally:
    """The rows of an iterable's batches, each of which is looked at once, and none before somebody asks."""

    def __init__(self, batches: Iterable[Batch | MultiBatch]) -> None:
        """Take an iterable; later epochs are taken to be as its first."""
        self._batches = batches
        self._iterator: Iterator[Batch | MultiBatch] | None = None
        self._rows: list[int] = []
        self._is_complete = False

    def count(self, first: int, count: int) -> Iterator[int]:
        """Yield numbers that add up to the rows of the batches `first` to `first + count`, one a batch looked at."""
        while len(self._rows) < first + count and not self._is_complete:
            self._look_at_next()
            yield 0
        if self._rows:
            epochs, rest = divmod(count, len(self._rows)) if self._is_complete else (0, count)
            yield epochs * sum(self._rows)
            yield sum(self._rows[place % len(self._rows)] for place in range(first, first + rest))

    def _look_at_next(self) -> None:
        if self._iterator is None:
            self._iterator = iter(self._batches)
        batch = next(self._iterator, None)
        if batch is None:
            self._is_complete = True
        else:
            self._rows.append(sum(num_rows(part) for part in as_multi_batch(batch).values()))


class IterableIterator:
    """Endless epochs of an iterable."""

    shards: tuple[int, ...] = ()
    rows_per_shard = 0
    is_aligned = False

    def __init__(self, batches: Iterable[Batch | MultiBatch], name: str) -> None:
        self.step = 0
        self._batches = batches
        self._name = name
        self._iterator: Iterator[Batch | MultiBatch] = iter(batches)

    def next_batch(self) -> Batch | MultiBatch:
        """Return the next batch; an iterable that gives none raises ConfigError."""
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = iter(self._batches)
            batch = next(self._iterator, None)
        if batch is None:
            raise ConfigError(
                explain(f"iterator {self._name}", got="no batch", allowed="at least one", fix="give it data")
            )
        self.step += 1
        return batch

    def seek(self, step: int) -> None:
        """Replay from the start: a plain iterable knows no shorter way."""
        self._iterator = iter(self._batches)
        self.step = 0
        while self.step < step:
            self.next_batch()

    def state_dict(self) -> dict[str, Any]:
        """Return the step."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Seek to a saved step."""
        self.seek(int(state["step"]))

    def close(self) -> None:
        """Nothing to free."""


class Iterables:
    """Names plain iterables for their learners: the same list of them as in the last call keeps its place."""

    def __init__(self) -> None:
        self._last: list[Any] = []
        self._wrapped: list[Any] = []
        self._version = 0
        self._tallies: list[RowTally | None] = []
        self.taken = 0
        """Batches that were asked for of the present ones, on each learner."""

    def sources(self, iterators: Sequence[BatchSource | Iterable[Batch | MultiBatch]]) -> list[BatchSource]:
        """Return a source for each; those that are none already are wrapped."""
        check_iterables({rank: one for rank, one in enumerate(iterators) if not isinstance(one, BatchSource)})
        if not _same(iterators, self._last):
            self._last, self._version, self.taken = list(iterators), self._version + 1, 0
            self._tallies = [None if isinstance(given, BatchSource) else RowTally(given) for given in iterators]
        return [
            given if isinstance(given, BatchSource) else IterableSource(given, "iterables", self._version, rank)
            for rank, given in enumerate(iterators)
        ]

    def count_rows(self, sources: Sequence[BatchSource], count: int) -> Iterator[int]:
        """Return numbers that add up to the rows of the next batches of `sources`, as `sources` returned them."""
        return _count_rows(list(zip(sources, self._tallies, strict=True)), self.taken, count)

    def wrapped(self, given: Sequence[Any], wrap: Callable[[Any], Any]) -> list[Any]:
        """Return each of `given` wrapped; the same ones as in the last call in the same wrappings."""
        if not _same(given, [inside for inside, _ in self._wrapped]):
            self._wrapped = [(inside, wrap(inside)) for inside in given]
        return [outside for _, outside in self._wrapped]


def _count_rows(counted: Iterable[tuple[BatchSource, RowTally | None]], first: int, count: int) -> Iterator[int]:
    for source, tally in counted:
        if tally is None:
            yield source.count_rows(first, count)
        else:
            yield from tally.count(first, count)


def _same(given: Sequence[Any], last: Sequence[Any]) -> bool:
    return len(given) == len(last) and all(a is b for a, b in zip(given, last, strict=True))
