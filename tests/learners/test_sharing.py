import collections
import itertools

import numpy as np
import pytest
from episode_cases import episode_lists, multi_agent_episode_lists, tagged_episode
from hypothesis import given
from hypothesis import strategies as st

from dask_rl.learners.sharing import share_out
from dask_rl.storage.multi_agent_episode import MultiAgentEpisode

LENGTHS = [10, 21, 3, 4, 35, 41, 5, 15, 44]


def deal(episodes, num_learners, lookback=0):
    return share_out(episodes, num_learners, lookback=lookback, discount_of=lambda _: 0.9)


def steps_of(share):
    """(tag, step) of each row that a share trains on."""
    return [tuple(row) for row in share.episode.observations[share.num_lookback : -1].astype(int).tolist()]


def loads(hands):
    return [sum(len(share) for share in hand) for hand in hands]


def agents_by_tag(episodes):
    return {
        agent.id: (agent, episode.module_ids[name], episode.env_steps[name])
        for episode in episodes
        for name, agent in episode.agents.items()
    }


def test_loads_are_equal_to_within_one_step():
    hands = deal([tagged_episode(length, tag) for tag, length in enumerate(LENGTHS)], 3)
    assert sorted(loads(hands)) == [59, 59, 60]
    assert sum(map(len, hands)) <= len(LENGTHS) + 2  # and as few cuts as that takes


def test_episodes_that_fit_are_not_cut():
    episodes = [tagged_episode(length, tag) for tag, length in enumerate([10, 6, 4, 7, 3])]
    hands = deal(episodes, 3)
    assert loads(hands) == [10, 10, 10]
    assert sorted(share.episode.id for hand in hands for share in hand) == [0, 1, 2, 3, 4]
    assert all(share.episode is episodes[share.episode.id] for hand in hands for share in hand)


@given(episodes=episode_lists(), num_learners=st.integers(1, 8), lookback=st.integers(0, 6))
def test_every_step_goes_to_one_learner_and_no_share_is_empty(episodes, num_learners, lookback):
    hands = deal(episodes, num_learners, lookback)
    assert len(hands) == num_learners
    given_out = [step for hand in hands for share in hand for step in steps_of(share)]
    assert sorted(given_out) == [(e.id, t) for e in episodes for t in range(len(e))]
    assert all(len(share) >= 1 for hand in hands for share in hand)
    assert max(loads(hands)) - min(loads(hands)) <= 1
    assert sum(map(len, hands)) <= len(episodes) + num_learners - 1
    for hand in hands:
        order = [steps_of(share)[0] for share in hand]
        assert order == sorted(order)


@given(episodes=episode_lists(), num_learners=st.integers(1, 8), lookback=st.integers(0, 50))
def test_lookback_is_the_steps_before_the_cut(episodes, num_learners, lookback):
    for hand in deal(episodes, num_learners, lookback):
        for share in hand:
            whole = episodes[share.episode.id]
            (_, start), (_, last) = steps_of(share)[0], steps_of(share)[-1]
            assert share.num_lookback == min(lookback, start)
            first = start - share.num_lookback
            for name in ("actions", "rewards", "terminations", "truncations"):
                np.testing.assert_array_equal(getattr(share.episode, name), getattr(whole, name)[first : last + 1])
            np.testing.assert_array_equal(share.episode.observations, whole.observations[first : last + 2])


@given(episodes=episode_lists(), num_learners=st.integers(2, 8))
def test_a_cut_is_no_end_and_its_final_observation_is_real(episodes, num_learners):
    ends = collections.Counter()
    for hand in deal(episodes, num_learners):
        for share in hand:
            whole, (_, last) = episodes[share.episode.id], steps_of(share)[-1]
            if last == len(whole) - 1:
                assert (share.episode.terminated, share.episode.truncated) == (whole.terminated, whole.truncated)
                assert share.episode.has_final_observation == whole.has_final_observation
                assert share.return_after == 0
                ends[whole.id] += 1
            else:
                assert not share.episode.terminated
                assert not share.episode.truncated
                assert share.episode.has_final_observation
                np.testing.assert_array_equal(share.episode.observations[-1], [whole.id, last + 1])
    assert ends == dict.fromkeys(range(len(episodes)), 1)


def test_one_long_episode_serves_all_learners():
    hands = deal([tagged_episode(11)], 4, lookback=2)
    assert [[len(share) for share in hand] for hand in hands] == [[3], [3], [3], [2]]
    assert [hand[0].num_lookback for hand in hands] == [0, 2, 2, 2]


def test_fewer_steps_than_learners_leave_some_without():
    assert sorted(loads(deal([tagged_episode(1), tagged_episode(2, 1)], 5))) == [0, 0, 1, 1, 1]


@given(episodes=multi_agent_episode_lists(), num_learners=st.integers(1, 5), lookback=st.integers(0, 4))
def test_of_several_agents_too_no_step_is_lost_or_doubled(episodes, num_learners, lookback):
    hands = deal(episodes, num_learners, lookback)
    agents = agents_by_tag(episodes)
    given_out = [step for hand in hands for share in hand for step in steps_of(share)]
    assert sorted(given_out) == [(tag, t) for tag in sorted(agents) for t in range(len(agents[tag][0]))]
    rows = collections.defaultdict(lambda: [0] * num_learners)
    for rank, hand in enumerate(hands):
        for share in hand:
            whole, module_id, _ = agents[share.episode.id]
            start = steps_of(share)[0][1]
            assert len(share) >= 1
            assert share.module_id == module_id
            assert share.num_lookback == min(lookback, start) or len(share.episode) == len(whole)
            rows[module_id][rank] += len(share)
    for counts in rows.values():
        assert min(counts) > 0 or sum(counts) < num_learners


@given(
    absences=st.lists(st.sets(st.integers(0, 29), max_size=15), min_size=1, max_size=4),
    num_learners=st.integers(1, 4),
)
def test_an_episode_is_cut_between_environment_steps(absences, num_learners):
    steps = [set(range(30)) - absence for absence in absences]
    names = [f"agent{place}" for place in range(len(steps))]
    episode = MultiAgentEpisode(
        {name: tagged_episode(len(own), tag) for tag, (name, own) in enumerate(zip(names, steps, strict=True))},
        dict.fromkeys(names, "m"),
        {name: np.array(sorted(own)) for name, own in zip(names, steps, strict=True)},
    )
    hands = deal([episode], num_learners)
    agents = agents_by_tag([episode])
    learner_of = {}
    for rank, hand in enumerate(hands):
        for tag, step in (step for share in hand for step in steps_of(share)):
            env_step = int(agents[tag][2][step])
            assert learner_of.setdefault(env_step, rank) == rank  # all agents of that step are together
    ranks = [learner_of[env_step] for env_step in sorted(learner_of)]
    assert sum(a != b for a, b in itertools.pairwise(ranks)) <= num_learners - 1
    fullest = max(collections.Counter(step for own in steps for step in own).values())
    fair = sum(map(len, steps)) / num_learners
    assert all(abs(load - fair) < fullest + 1 for load in loads(hands))


@given(episodes=multi_agent_episode_lists(module_ids=("m",)), num_learners=st.integers(1, 5))
def test_loads_of_several_agents_are_equal_to_within_one_environment_step(episodes, num_learners):
    fullest = max(
        count
        for e in episodes
        for count in np.unique(np.concatenate(list(e.env_steps.values())), return_counts=True)[1]
    )
    fair = sum(episode.num_agent_steps for episode in episodes) / num_learners
    given_out = loads(deal(episodes, num_learners))
    assert all(abs(load - fair) < fullest + 1 for load in given_out)
    assert min(given_out) > 0 or fair < 1


def test_an_agent_that_is_absent_in_a_stretch_has_no_share_of_it():
    late = MultiAgentEpisode(
        {"always": tagged_episode(20, 0), "late": tagged_episode(4, 1)},
        {"always": "m", "late": "m"},
        {"always": np.arange(20), "late": np.arange(16, 20)},
    )
    hands = deal([late], 2, lookback=3)
    assert [[(share.episode.id, len(share), share.num_lookback) for share in hand] for hand in hands] == [
        [(0, 12, 0)],
        [(0, 8, 3), (1, 4, 0)],
    ]


def test_a_module_whose_agent_comes_late_has_rows_on_every_learner():
    late = MultiAgentEpisode(
        {"always": tagged_episode(20, 0), "late": tagged_episode(4, 1)},
        {"always": "m", "late": "other"},
        {"always": np.arange(20), "late": np.arange(16, 20)},
    )
    hands = deal([late], 2)
    assert [{share.module_id: len(share) for share in hand} for hand in hands] == [
        {"m": 12, "other": 2},
        {"m": 8, "other": 2},
    ]


@pytest.mark.parametrize("num_learners", [2, 3])
def test_episodes_of_different_modules_are_shared_out_apart(num_learners):
    episodes = [
        MultiAgentEpisode({"a": tagged_episode(length, tag)}, {"a": module_id}, {"a": np.arange(length)})
        for tag, (length, module_id) in enumerate([(30, "m0"), (12, "m1"), (30, "m0"), (6, "m1")])
    ]
    for hand in deal(episodes, num_learners):
        rows = collections.Counter()
        for share in hand:
            rows[share.module_id] += len(share)
        assert rows == {"m0": 60 // num_learners, "m1": 18 // num_learners}


def test_remainders_of_several_modules_do_not_add_up_on_one_learner():
    episodes = [
        MultiAgentEpisode({"a": tagged_episode(4, tag)}, {"a": f"m{tag}"}, {"a": np.arange(4)}) for tag in range(3)
    ]
    assert loads(deal(episodes, 3)) == [4, 4, 4]


@given(episodes=multi_agent_episode_lists(module_ids=("m",)), num_learners=st.integers(1, 5))
def test_stretches_that_adjoin_are_one_share(episodes, num_learners):
    for hand in deal(episodes, num_learners):
        ends = {(share.episode.id, steps_of(share)[-1][1] + 1) for share in hand}
        assert not ends & {steps_of(share)[0] for share in hand}


def test_sharing_out_is_reproducible():
    episodes = [tagged_episode(length, tag) for tag, length in enumerate(LENGTHS)]
    first, second = ([[steps_of(s) for s in hand] for hand in deal(episodes, 4)] for _ in range(2))
    assert first == second
