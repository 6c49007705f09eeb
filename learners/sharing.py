"""Who trains on which stretch of which episode."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dask_rl.storage.episode import Array
from dask_rl.storage.transforms import returns_to_go

from .batch import ModuleID
from .episodes import AgentSteps, AnyEpisode, DiscountOf, EpisodeShare, agents_of


@dataclass(frozen=True, order=True)
class _Stretch:
    """Steps `start` to `stop`, exclusive, of one agent of one episode."""

    episode: int
    agent: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class _Timeline:
    """An episode's rows in the order of the environment: it can be cut between environment steps only."""

    def __init__(self, episode: AnyEpisode) -> None:
        self.agents: list[AgentSteps] = agents_of(episode)
        self.env_steps: Array = np.sort(np.concatenate([agent.env_steps for agent in self.agents]))  # (rows,)
        self.module_ids = tuple(sorted({agent.module_id for agent in self.agents}))

    def cut(self, first: int, room: int) -> int:
        """Return the last row at which to cut so that at most `room` rows lie between it and `first`, if any.

        It is at least one environment step after `first`.
        """
        row = int(np.searchsorted(self.env_steps, self.env_steps[first + room], side="left"))
        return row if row > first else int(np.searchsorted(self.env_steps, self.env_steps[first], side="right"))

    def stretches(self, index: int, first: int, last: int) -> list[_Stretch]:
        """Return rows `first` to `last` by agent; an agent that was absent has none."""
        found = []
        for number, agent in enumerate(self.agents):
            start = int(np.searchsorted(agent.env_steps, self.env_steps[first], side="left"))
            stop = int(np.searchsorted(agent.env_steps, self.env_steps[last - 1], side="right"))
            if start < stop:
                found.append(_Stretch(index, number, start, stop))
        return found


def share_out(
    episodes: Sequence[AnyEpisode], num_learners: int, *, lookback: int, discount_of: DiscountOf
) -> list[list[EpisodeShare]]:
    """Share episodes out among learners: the longest first to the least loaded, cut where they exceed its part.

    Every step goes to exactly one learner, and no share is empty. Episodes that train the same modules are shared out
    evenly: a learner's rows differ from the mean by less than the fullest environment step has, those of single
    agents by less than one. A module with at least as many steps as there are learners has some on each of them.

    Args:
        episodes: of any number of agents and modules. They are cut by environment step.
        num_learners: at least 1.
        lookback: steps of the same agent before a cut that the later part keeps as context.
        discount_of: for the return after a cut, by module id.

    Returns:
        The shares of each learner, in the order of the episodes and of time.
    """
    timelines = [_Timeline(episode) for episode in episodes]
    hands: list[list[_Stretch]] = [[] for _ in range(num_learners)]
    loads = [0] * num_learners
    # Episodes of other modules are dealt on their own, else all rows of one module may end up on one learner.
    kinds: dict[tuple[ModuleID, ...], list[int]] = {}
    for index, timeline in enumerate(timelines):
        kinds.setdefault(timeline.module_ids, []).append(index)
    for module_ids in sorted(kinds):
        _deal(kinds[module_ids], timelines, hands, loads)
    _fill_gaps(timelines, hands)
    returns: dict[tuple[int, int], Array] = {}
    return [[_share(stretch, timelines, lookback, discount_of, returns) for stretch in _merged(hand)] for hand in hands]


def _deal(
    indices: Sequence[int], timelines: Sequence[_Timeline], hands: list[list[_Stretch]], loads: list[int]
) -> None:
    """Deal episodes of one kind; `hands` and `loads` grow."""
    sizes = {index: len(timelines[index].env_steps) for index in indices}
    each, rest = divmod(sum(sizes.values()), len(hands))
    least_loaded = sorted(range(len(hands)), key=lambda rank: loads[rank])
    # Heaps of negative numbers: the longest piece and the learner with the most room come first.
    rooms = [(-each - (place < rest), rank) for place, rank in enumerate(least_loaded)]
    pieces = [(-size, index, 0) for index, size in sizes.items()]
    heapq.heapify(rooms)
    heapq.heapify(pieces)
    short = 0  # rows that full learners lack, as cuts fall between environment steps; the next ones may take them
    while pieces:
        size, index, first = heapq.heappop(pieces)
        room, rank = rooms[0]
        last, most = first - size, short - room
        cut = last if -size <= most else timelines[index].cut(first, most)
        taken = cut - first
        if taken > -room or cut < last:
            short = max(0, most - taken)
        hands[rank] += timelines[index].stretches(index, first, cut)
        loads[rank] += taken
        heapq.heapreplace(rooms, (room + taken, rank))
        if cut < last:
            heapq.heappush(pieces, (cut - last, index, cut))


def _fill_gaps(timelines: Sequence[_Timeline], hands: list[list[_Stretch]]) -> None:
    """Let each learner have rows of each module that has enough of them, even where its agents came for a while only.

    Else the module could not be trained at all: a learner without rows of it has nothing to exchange.
    """

    def module_of(stretch: _Stretch) -> ModuleID:
        return timelines[stretch.episode].agents[stretch.agent].module_id

    rows_of: dict[ModuleID, list[int]] = {}
    for rank, hand in enumerate(hands):
        for stretch in hand:
            rows_of.setdefault(module_of(stretch), [0] * len(hands))[rank] += len(stretch)
    for module_id, rows in sorted(rows_of.items()):
        fair = sum(rows) // len(hands)
        while fair and 0 in rows:
            poor, rich = rows.index(0), rows.index(max(rows))  # the rich one has more than `fair`
            given = max((stretch for stretch in hands[rich] if module_of(stretch) == module_id), key=len)
            hands[rich].remove(given)
            if len(given) > fair:
                hands[rich].append(replace(given, stop=given.stop - fair))
                given = replace(given, start=given.stop - fair)
            hands[poor].append(given)
            rows[rich] -= len(given)
            rows[poor] += len(given)


def _merged(hand: list[_Stretch]) -> list[_Stretch]:
    """Sort stretches and join those that adjoin."""
    merged: list[_Stretch] = []
    for stretch in sorted(hand):
        before = merged[-1] if merged else None
        if before and (before.episode, before.agent, before.stop) == (stretch.episode, stretch.agent, stretch.start):
            merged[-1] = replace(before, stop=stretch.stop)
        else:
            merged.append(stretch)
    return merged


def _share(
    stretch: _Stretch,
    timelines: Sequence[_Timeline],
    lookback: int,
    discount_of: DiscountOf,
    returns: dict[tuple[int, int], Array],
) -> EpisodeShare:
    """Make a share of a stretch; `returns` keeps the returns-to-go of episodes that are cut."""
    agent = timelines[stretch.episode].agents[stretch.agent]
    length = len(agent.episode)
    if len(stretch) == length:
        return EpisodeShare(agent.episode, agent.module_id)
    first = max(0, stretch.start - lookback)
    return_after = 0.0
    if stretch.stop < length:
        key = (stretch.episode, stretch.agent)
        if key not in returns:
            rows = np.append(agent.episode.rewards.astype(np.float64), 0)  # with that of the final observation
            ends = np.array([length + 1])
            returns[key] = returns_to_go(rows, np.array([0]), ends, discount_of(agent.module_id))
        return_after = float(returns[key][stretch.stop])
    return EpisodeShare(agent.episode.part(first, stretch.stop), agent.module_id, stretch.start - first, return_after)
