"""One numbered request for an update: every input of a group becomes one of these a learner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_rl.storage.episode import Episode

from .batch import ModuleID, MultiBatch
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
    episodes: Sequence[Episode] | None = None
    num_iters: int = 1
    """Gradient steps to take from `source`."""
    num_minibatches: int = 1
    """Gradient steps to take from `batch` or `episodes`."""
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
