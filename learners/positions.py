"""Positions of a group's learners: who stands furthest."""

from collections.abc import Mapping

from .request import Position


def most_advanced(positions: Mapping[int, Position]) -> int:
    """Return the id of the learner whose state the others take over; the lowest of several, 0 for none.

    Of two at the same step, one that has ended the request is ahead: it has run the hooks after it.
    """

    def progress(actor_id: int) -> tuple[int, int, int]:
        position = positions[actor_id]
        return position.step, position.weights_seq_no, -actor_id

    return max(positions, key=progress, default=0)
