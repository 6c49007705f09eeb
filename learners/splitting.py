"""How one update is shared among learners, and the plan that all of them follow."""

from collections.abc import Sequence
from dataclasses import dataclass

from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError, explain

from .batch import ModuleID, MultiBatch, num_rows, split_batch
from .minibatch import count_minibatches


@dataclass(frozen=True)
class UpdatePlan:
    """Each learner's part of an update, and what all of them do alike."""

    num_minibatches: int
    modules_to_skip: frozenset[ModuleID] = frozenset()
    batches: tuple[MultiBatch, ...] = ()
    episodes: tuple[tuple[Episode, ...], ...] = ()


def plan_batch_update(batch: MultiBatch, num_learners: int, num_epochs: int, minibatch_size: int | None) -> UpdatePlan:
    """Split every module's rows evenly; leave out modules with fewer rows than learners."""
    if not batch or all(num_rows(rows) == 0 for rows in batch.values()):
        raise ConfigError(explain("batch", got="no rows", allowed="at least one", fix="give it data"))
    parts = {module_id: split_batch(batch[module_id], num_learners) for module_id in sorted(batch)}
    skipped = frozenset(module_id for module_id in batch if num_rows(batch[module_id]) < num_learners)
    rows = [num_rows(part) for module_id, split in parts.items() if module_id not in skipped for part in split]
    batches = tuple({module_id: parts[module_id][rank] for module_id in parts} for rank in range(num_learners))
    return UpdatePlan(count_minibatches(rows or [1], num_epochs, minibatch_size), skipped, batches)


def plan_episode_update(
    episodes: Sequence[Episode], num_learners: int, num_epochs: int, minibatch_size: int | None
) -> UpdatePlan:
    """Give whole episodes to learners, the longest first to the one with the fewest steps.

    Raises:
        ConfigError: fewer episodes than learners.
    """
    if len(episodes) < num_learners:
        raise ConfigError(
            explain(
                "episodes",
                got=len(episodes),
                allowed=f"at least {num_learners}, one per learner",
                fix="give it more",
            )
        )
    shares: list[list[int]] = [[] for _ in range(num_learners)]
    loads = [0] * num_learners
    for index in sorted(range(len(episodes)), key=lambda i: -len(episodes[i])):
        rank = loads.index(min(loads))
        shares[rank].append(index)
        loads[rank] += len(episodes[index])
    parts = tuple(tuple(episodes[index] for index in sorted(share)) for share in shares)
    return UpdatePlan(count_minibatches(loads, num_epochs, minibatch_size), episodes=parts)
