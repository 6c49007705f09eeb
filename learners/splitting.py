"""How one update is shared among learners, and the plan that all of them follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from dask_rl.storage.errors import ConfigError, explain

from .batch import ModuleID, MultiBatch, num_rows, split_batch
from .episodes import AnyEpisode, DiscountOf, EpisodeShare
from .minibatch import count_minibatches
from .sharing import share_out

Item = TypeVar("Item")


@dataclass(frozen=True)
class UpdatePlan:
    """Each learner's part of an update, and what all of them do alike."""

    num_minibatches: int
    modules_to_skip: frozenset[ModuleID] = frozenset()
    """Modules of which some learner has no row."""
    batches: tuple[MultiBatch, ...] = ()
    shares: tuple[tuple[EpisodeShare, ...], ...] = ()


def plan_batch_update(batch: MultiBatch, num_learners: int, num_epochs: int, minibatch_size: int | None) -> UpdatePlan:
    """Split every module's rows evenly; leave out modules with fewer rows than learners.

    Raises:
        ConfigError: a module without a row, or no module.
    """
    if not batch:
        raise ConfigError(explain("batch", got="no rows", allowed="at least one", fix="give it data"))
    rows = {module_id: num_rows(batch[module_id]) for module_id in sorted(batch)}
    for module_id, number in rows.items():
        if number == 0:
            subject = f"batch of module {module_id!r}"
            raise ConfigError(
                explain(subject, got="no rows", allowed="at least one", fix="give it data, or leave it out")
            )
    parts = {module_id: split_batch(batch[module_id], num_learners) for module_id in rows}
    batches = tuple({module_id: parts[module_id][rank] for module_id in parts} for rank in range(num_learners))
    rows_per_learner = {module_id: [num_rows(part) for part in split] for module_id, split in parts.items()}
    skipped, count = _agree(rows_per_learner, num_epochs, minibatch_size)
    return UpdatePlan(count, skipped, batches)


def plan_episode_update(
    episodes: Sequence[AnyEpisode],
    num_learners: int,
    num_epochs: int,
    minibatch_size: int | None,
    *,
    lookback: int,
    discount_of: DiscountOf,
) -> UpdatePlan:
    """Share episodes out among learners; leave out modules with fewer steps than learners.

    Args:
        episodes: of one or more agents.
        num_learners: learners to share them out to.
        num_epochs: passes over the rows.
        minibatch_size: rows per module of a minibatch; None: all.
        lookback: steps before a cut that the later part keeps as context.
        discount_of: discount of returns-to-go, by module id.

    Raises:
        ConfigError: no episode, or something that is none.
    """
    if not episodes:
        raise ConfigError(explain("episodes", got="none", allowed="at least one", fix="give it data"))
    hands = share_out(episodes, num_learners, lookback=lookback, discount_of=discount_of)
    rows_per_learner: dict[ModuleID, list[int]] = {}
    for rank, hand in enumerate(hands):
        for share in hand:
            rows_per_learner.setdefault(share.module_id, [0] * num_learners)[rank] += len(share)
    skipped, count = _agree(rows_per_learner, num_epochs, minibatch_size)
    return UpdatePlan(count, skipped, shares=tuple(map(tuple, hands)))


def _agree(
    rows_per_learner: dict[ModuleID, list[int]], num_epochs: int, minibatch_size: int | None
) -> tuple[frozenset[ModuleID], int]:
    """Return the modules that not every learner has rows of, and the number of minibatches of the others."""
    skipped = frozenset(module_id for module_id, rows in rows_per_learner.items() if min(rows) == 0)
    trained = [number for module_id, rows in rows_per_learner.items() if module_id not in skipped for number in rows]
    return skipped, count_minibatches(trained or [1], num_epochs, minibatch_size)


def split_contiguous(items: Sequence[Item], num_parts: int) -> list[list[Item]]:
    """Split into contiguous parts whose sizes differ by at most one, the larger ones first."""
    each, rest = divmod(len(items), num_parts)
    starts = [part * each + min(part, rest) for part in range(num_parts + 1)]
    return [list(items[starts[part] : starts[part + 1]]) for part in range(num_parts)]
