"""LearnerRank: a learner as one of a group, which leaves it after a failure and joins the next one."""

import torch

from .collective import Collective
from .learner_state import LearnerState
from .request import Position


class LearnerRank(LearnerState):
    """Leaving, and taking over the state of another rank."""

    def position(self) -> Position:
        """Return where the learner stands, always at the end of a completed step."""
        return Position(
            self.step,
            self.weights_seq_no,
            self.num_skipped_steps,
            self.open_request,
            self.open_first_step,
            self._iterator_states(),
        )

    def leave(self) -> Position:
        """Leave the group, so that peers that wait for this rank get an error; may be called again."""
        self.collective.close()
        return self.position()

    def join(self, collective: Collective, *, source: int = 0, position: Position | None = None) -> None:
        """Become a rank of a group: all take over weights, targets, optimizer state and counters of one of them.

        Args:
            collective: the group; the present one is left. A group of one has nobody to take over from.
            source: the rank that has the state.
            position: where the source stands. None: its counters without its requests and iterators, enough for a
                group that has trained nothing.
        """
        if collective is not self.collective:
            self.collective.close()
        self.collective = collective
        self.stop_requested = False
        self.is_warm = False
        self._taken_over = set()
        if collective.size > 1:
            # A copy that breaks off leaves a mixture, except where it would have changed nothing.
            self.knows_state = self.knows_state and (collective.rank == source or self.position() == position)
            self._take_over(source)
        self.knows_state = True
        if position is not None:
            self._stand_at(position)

    def _stand_at(self, position: Position) -> None:
        self.step = position.step
        self.weights_seq_no = position.weights_seq_no
        self.num_skipped_steps = position.num_skipped_steps
        self.open_request, self.open_first_step = position.open_request, position.open_first_step
        self.iterator_steps = position.iterator_steps
        # What is open here is sought to its step, the rest opened there.
        closed = position.iterators.keys() - self.iterators.keys()
        self._saved_iterators = {key: dict(position.iterators[key]) for key in sorted(closed)}
        self._taken_over = set(position.iterators) if self.collective.size > 1 else set()

    def _take_over(self, source: int) -> None:
        optimizers = [self.optimizers[key] for key in sorted(self.optimizers)]
        mine = [self.step, self.weights_seq_no, self.num_skipped_steps, *(bool(o.tensors()) for o in optimizers)]
        lifetime = self.lifetime.to_list()
        counters = torch.tensor([*mine, *lifetime], dtype=torch.int64).to(self.device)
        self.collective.broadcast_(counters, source)
        self.step, self.weights_seq_no, self.num_skipped_steps, *rest = counters.tolist()
        have_state = rest[: len(optimizers)]
        self.lifetime.load_list(rest[len(optimizers) :])
        # A learner that failed in the first step, or is new, would take part in fewer broadcasts than the others.
        for optimizer, has_state in zip(optimizers, have_state, strict=True):
            optimizer.ensure_state(bool(has_state))
        for tensor in self._shared_tensors():
            self.collective.broadcast_(tensor, source)
