"""The order of the rows of one episode, when files are out of order. Pure.

A column `t` decides where there is one. Otherwise the observation that follows a row (`new_obs`) must be that of
the next row: rows are kept in stored order where this holds, and pieces are put together where it holds between
the end of one and the start of another. What remains apart are episodes of their own.
"""

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain

from .base import Array

_MIN_ROWS_TO_JUDGE = 8


def order_episodes(
    observations: Array | None, next_observations: Array | None, times: Array | None, done: Array, origin: str
) -> list[Array]:
    """Return one array of row numbers for each episode among rows that share an id.

    Args:
        observations: (rows, …); not needed where `times` decide, or there are no next observations.
        next_observations: (rows, …) or None.
        times: (rows,) step numbers or None.
        done: (rows,) bool, the last row of an episode.
        origin: where the rows lie, for messages.

    Raises:
        SourceFormatError: there is nothing to order the rows by.
    """
    num_rows = len(done)
    order = np.arange(num_rows)
    if times is not None:
        if len(np.unique(times)) == num_rows:
            order = np.argsort(times, kind="stable")
        linked = np.diff(times[order]) == 1
        return _judged(_split(order, linked & ~done[order][:-1]), done, origin)
    if observations is None or next_observations is None:
        return _split(order, ~done[:-1])
    first = observations.reshape(num_rows, -1)
    after = next_observations.reshape(num_rows, -1)
    linked = _equal(after[:-1], first[1:]) & ~done[:-1]
    pieces = _split(order, linked)
    if len(pieces) > 1:
        pieces = _chain(pieces, first, after, done)
    return _judged(pieces, done, origin)


def count_gaps(pieces: list[Array], done: Array) -> int:
    """Return how many of the episodes of an id end without a flag, although others follow."""
    return sum(not done[piece[-1]] for piece in pieces[:-1])


def _judged(pieces: list[Array], done: Array, origin: str) -> list[Array]:
    """Return the pieces, unless most rows stand alone without being the end of an episode."""
    num_rows, num_loose = len(done), sum(not done[piece[-1]] for piece in pieces)
    if num_rows >= _MIN_ROWS_TO_JUDGE and num_loose > num_rows // 2:
        raise SourceFormatError(
            explain(
                origin,
                got="rows of one eps_id that do not follow each other, neither by t nor by obs and new_obs",
                allowed="the steps of an episode, in any order",
                fix="add a column t with the number of the step, or correct it",
            )
        )
    return pieces


def _split(order: Array, linked: Array) -> list[Array]:
    """Cut `order` where a row is not linked to the next."""
    return np.split(order, np.flatnonzero(~linked) + 1)


def _equal(left: Array, right: Array) -> Array:
    """Whether rows are equal; a NaN is no break, the checks of the values report it."""
    return ((left == right) | np.isnan(left) | np.isnan(right)).all(axis=1)


def _chain(pieces: list[Array], first: Array, after: Array, done: Array) -> list[Array]:
    """Put pieces together where one ends with the observation that another starts with."""
    starts: dict[bytes, list[int]] = {}
    for number, piece in enumerate(pieces):
        starts.setdefault(_key(first[piece[0]]), []).append(number)
    successor: dict[int, int] = {}
    for number, piece in enumerate(pieces):
        candidates = starts.get(_key(after[piece[-1]]), [])
        if not done[piece[-1]] and (following := [other for other in candidates if other != number]):
            successor[number] = following[0]
            candidates.remove(following[0])
    heads = [number for number in range(len(pieces)) if number not in set(successor.values())]
    chains: list[Array] = []
    used: set[int] = set()
    for head in [*heads, *range(len(pieces))]:  # the latter: pieces that follow each other in a circle
        chain: list[Array] = []
        current: int | None = head
        while current is not None and current not in used:
            used.add(current)
            chain.append(pieces[current])
            current = successor.get(current)
        if chain:
            chains.append(np.concatenate(chain))
    return chains


def _key(row: Array) -> bytes:
    return np.asarray(row + 0.0, dtype=np.float64).tobytes()  # + 0.0: -0.0 equals 0.0
