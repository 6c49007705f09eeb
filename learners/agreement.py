"""What learners agree on where no driver has seen their rows: a rank alone in an exchange would wait for ever."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from .batch import ModuleID, MultiBatch, num_rows
from .collective import Collective
from .minibatch import count_minibatches

ShouldBeUpdated = Collection[ModuleID] | Callable[[ModuleID, MultiBatch], bool] | None
"""Which modules updates train: all; these; or those of which a function says so on every learner, in every step."""

_WITHOUT_ROWS, _UNWANTED, _WANTED = 1, 2, 3
"""What a learner says of a module in a step; 0: its batch does not name it."""


@dataclass(frozen=True)
class Agreement:
    """What all learners do alike."""

    module_ids: tuple[ModuleID, ...]
    """The modules that are updated."""
    num_left_out: int
    """Further modules that some learner named and some learner has no row of."""
    num_minibatches: int = 1


def agree_on_update(
    collective: Collective,
    batches: MultiBatch,
    *,
    num_epochs: int,
    minibatch_size: int | None,
    module_ids: Sequence[ModuleID],
    device: torch.device,
) -> Agreement:
    """Agree on a whole update: on the modules with rows on every learner, and on minibatches for the most rows.

    Args:
        collective: the learners; there is one exchange.
        batches: this learner's rows.
        num_epochs: passes over the rows.
        minibatch_size: rows per module of a minibatch; None: all of them.
        module_ids: all modules; the same on every learner.
        device: where the collective takes tensors from.
    """
    own = [num_rows(batches[id_]) + 1 if id_ in batches else 0 for id_ in module_ids]
    said = _exchange(collective, own, device)
    least, most = said.amin(0), said.amax(0)
    shared = least > 1
    longest = int(most[shared].max()) - 1 if bool(shared.any()) else 1
    return Agreement(
        _select(module_ids, shared),
        int(((most > 0) & ~shared).sum()),
        count_minibatches([longest], num_epochs, minibatch_size),
    )


def agree_on_step(
    collective: Collective,
    batches: MultiBatch,
    *,
    wants: Callable[[ModuleID], bool],
    module_ids: Sequence[ModuleID],
    device: torch.device,
) -> Agreement:
    """Agree on one step: on the modules that have rows on every learner and that every learner wants to update."""
    own = []
    for module_id in module_ids:
        if not num_rows(batches.get(module_id, {})):
            own.append(_WITHOUT_ROWS if module_id in batches else 0)
        else:
            own.append(_WANTED if wants(module_id) else _UNWANTED)
    said = _exchange(collective, own, device)
    least, most = said.amin(0), said.amax(0)
    return Agreement(_select(module_ids, least == _WANTED), int(((most > 0) & (least < _UNWANTED)).sum()))


def _exchange(collective: Collective, own: list[int], device: torch.device) -> torch.Tensor:
    """Return what each rank said, (size, len(own))."""
    said = torch.zeros(collective.size, len(own), dtype=torch.int64)
    said[collective.rank] = torch.tensor(own, dtype=torch.int64)
    said = said.to(device)
    collective.all_reduce_(said)
    return said.cpu()


def _select(module_ids: Sequence[ModuleID], chosen: torch.Tensor) -> tuple[ModuleID, ...]:
    return tuple(module_id for module_id, is_chosen in zip(module_ids, chosen.tolist(), strict=True) if is_chosen)
