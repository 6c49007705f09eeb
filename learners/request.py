"""One numbered request for an update: every input of a group becomes one of these a learner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .batch import ModuleID, MultiBatch
from .episodes import AnyEpisode, EpisodeShare
from .iterator import BatchSource


@dataclass(frozen=True)
class UpdateRequest:
    """An update from one of a source of batches, a batch, or episodes.

    The plan (number of minibatches, modules to leave out) is the same for all learners of a group: a rank alone in
    an exchange would wait for ever.
    """

    number: int
    """Position in the group's order of update calls; becomes the weights' sequence number."""
    source: BatchSource | None = None
    batch: MultiBatch | None = None
    episodes: Sequence[EpisodeShare | AnyEpisode] | None = None
    future_keys: tuple[str, ...] = ()
    """Keys of Dask futures of a batch, or of lists of episodes; the actor fetches them."""
    futures_are_episodes: bool = False
    """Which of the two they are of."""
    num_iters: int = 1
    """Gradient steps to take from `source`."""
    num_minibatches: int | None = 1
    """Gradient steps to take from `batch` or `episodes`; None: the learners agree on it, as the driver has not seen
    the rows. It is then ceil(num_epochs · most rows of a module on a learner / minibatch_size)."""
    num_epochs: int = 1
    """Passes over the rows, where `num_minibatches` is None."""
    minibatch_size: int | None = None
    """Rows per module of a minibatch; None: all of them."""
    shuffle_seed: int | None = None
    """Seed of the order of the rows in each pass; None: as they lie."""
    modules_to_skip: frozenset[ModuleID] = frozenset()
    """Modules of which some learner has no row; counted, not updated."""
    return_state: bool = False
    """Whether the result carries the updated modules' inference-only weights."""
    timesteps: Mapping[str, Any] = field(default_factory=dict)
    """Counters of the caller, passed on to the hooks."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the caller, passed on to the hooks."""


@dataclass(frozen=True)
class Position:
    """Where a learner stands: what its peers take over beside its tensors."""

    step: int = 0
    weights_seq_no: int = 0
    """Number of the last request that was carried out to its end."""
    num_skipped_steps: int = 0
    open_request: int | None = None
    """Number of a request that was begun and not finished."""
    open_first_step: int = 0
    """The step at which it began."""
    iterators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The state of each iterator, by key: its "step" is the number of steps completed from it."""

    @property
    def iterator_steps(self) -> dict[str, int]:
        """Steps completed from each iterator, by key."""
        return {key: int(state["step"]) for key, state in self.iterators.items()}
