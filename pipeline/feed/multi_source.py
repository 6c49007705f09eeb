"""The feeds of several modules as one: shared out together, opened together."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from dask_rl.learners.batch import ModuleID
from dask_rl.learners.iterator import BatchSource
from dask_rl.storage.errors import ConfigError, explain

from .iterator import DatasetIterator
from .multi_iterator import MultiIterator
from .source import DatasetSource, FeedPlan


@dataclass(frozen=True)
class MultiSource:
    """The recipe of one learner's MultiIterator: small and picklable."""

    sources: Mapping[ModuleID, DatasetSource]
    """By module, all with the same data shards."""
    name: str = "train"
    """What the batches are for."""

    @property
    def key(self) -> str:
        """Name under which a learner keeps it: the same on all learners, whatever their shards."""
        return self.name

    def open(self, device: torch.device, timeout_seconds: float) -> MultiIterator:
        """Open the dataset of every module; in resident mode also load it."""
        iterators: dict[ModuleID, DatasetIterator] = {}
        with ExitStack() as undo:
            for module_id, source in sorted(self.sources.items()):
                iterators[module_id] = source.open(device, timeout_seconds)
                undo.callback(iterators[module_id].close)
            undo.pop_all()
        return MultiIterator(iterators)

    def continues(self, previous: BatchSource) -> bool:
        """Tell whether it is the same feed of every module, whatever the shards."""
        return (
            isinstance(previous, MultiSource)
            and (self.name, self.sources.keys()) == (previous.name, previous.sources.keys())
            and all(source.continues(previous.sources[module_id]) for module_id, source in self.sources.items())
        )

    def count_rows(self, first: int, count: int) -> int:
        """Return the rows of so many batches, all modules together."""
        return sum(source.count_rows(first, count) for source in self.sources.values())


@dataclass(frozen=True)
class MultiFeedPlan:
    """The feeds of several modules, to be shared out among any number of learners.

    Raises:
        ConfigError: no module, or feeds that are not divided alike.
    """

    plans: Mapping[ModuleID, FeedPlan]

    def __post_init__(self) -> None:
        """Refuse feeds that differ in what a MultiIterator says of all its modules."""
        divisions = {
            module_id: {"batch_size": plan.feed.batch_size, "num_shards": plan.feed.num_shards}
            for module_id, plan in sorted(self.plans.items())
        }
        if not divisions or any(division != next(iter(divisions.values())) for division in divisions.values()):
            raise ConfigError(
                explain("feeds", got=divisions, allowed="one batch_size and num_shards for all", fix="make them equal")
            )

    def shares(self, num_learners: int) -> tuple[MultiSource, ...]:
        """Return a source for each learner; together they give the same global batches for any number.

        Raises:
            ConfigError: there are more learners than data shards, or none.
        """
        shares = {module_id: plan.shares(num_learners) for module_id, plan in self.plans.items()}
        return tuple(
            MultiSource({module_id: sources[learner] for module_id, sources in shares.items()})
            for learner in range(num_learners)
        )

    def rows_per_batch(self) -> int:
        """Return the rows of a global batch, all modules together."""
        return sum(plan.rows_per_batch() for plan in self.plans.values())
