from dataclasses import replace

import numpy as np
import pytest
import torch
from episode_cases import episode_lists, multi_agent_episode_lists, tagged_episode
from hypothesis import given
from hypothesis import strategies as st

from dask_rl.learners.batch import DEFAULT_MODULE_ID, num_rows
from dask_rl.learners.episodes import EpisodeShare, multi_batch_from_episodes
from dask_rl.learners.sharing import share_out
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError
from dask_rl.storage.multi_agent_episode import MultiAgentEpisode

DISCOUNTS = {DEFAULT_MODULE_ID: 0.97, "m0": 0.9, "m1": 0.99}


def bits(tensor):
    return tensor.numpy().tobytes()


def test_episodes_end_to_end():
    def episode(length, terminated, has_final):
        ends = np.arange(length) == length - 1
        observations = np.arange(length + 1, dtype=np.float32)[:, None] + 10 * length
        return Episode(
            observations,
            np.arange(length),
            np.ones(length, np.float32),
            ends & terminated,
            ends & (not terminated),
            has_final_observation=has_final,
        )

    episodes = [episode(2, True, True), episode(3, False, False)]
    batch = multi_batch_from_episodes(episodes, torch.float64, {DEFAULT_MODULE_ID: 0.5}.__getitem__)[DEFAULT_MODULE_ID]
    assert batch["observations"].flatten().tolist() == [20, 21, 30, 31, 32]
    assert batch["next_observations"].flatten().tolist() == [21, 22, 31, 32, 33]
    assert batch["terminations"].tolist() == [0, 1, 0, 0, 0]
    assert batch["next_valid"].tolist() == [True, True, True, True, False]
    assert batch["actions"].tolist() == [0, 1, 0, 1, 2]
    assert batch["returns_to_go"].tolist() == [1.5, 1, 1.75, 1.5, 1]
    assert {name: t.dtype for name, t in batch.items()} == {
        "observations": torch.float64,
        "next_observations": torch.float64,
        "next_valid": torch.bool,
        "actions": torch.int64,
        "rewards": torch.float64,
        "terminations": torch.float64,
        "returns_to_go": torch.float64,
    }


def test_a_stretch_gives_rows_for_its_own_steps_only():
    whole = tagged_episode(9, terminated=True)
    share = EpisodeShare(whole.part(2, 6), "m", num_lookback=3, return_after=2.0)
    assert len(share) == 1
    batch = multi_batch_from_episodes([share], torch.float64, lambda _: 0.5)["m"]
    assert batch["observations"].tolist() == [[0, 5]]
    assert batch["next_observations"].tolist() == [[0, 6]]
    assert batch["next_valid"].tolist() == [True]
    assert batch["terminations"].tolist() == [0]
    assert batch["returns_to_go"].tolist() == [whole.rewards[5].astype(np.float64) + 0.5 * 2.0]


def test_agents_of_one_module_share_a_batch_and_modules_have_discounts_of_their_own():
    agents = {name: tagged_episode(2, tag) for tag, name in enumerate("abc")}
    steps = dict.fromkeys("abc", np.arange(2))
    episode = MultiAgentEpisode(agents, {"a": "m1", "b": "m0", "c": "m1"}, steps)
    batches = multi_batch_from_episodes([episode, tagged_episode(1, 7)], torch.float64, DISCOUNTS.__getitem__)
    assert list(batches) == [DEFAULT_MODULE_ID, "m0", "m1"]
    assert batches["m0"]["observations"][:, 0].tolist() == [1, 1]
    assert batches["m1"]["observations"][:, 0].tolist() == [0, 0, 2, 2]
    for module_id, agent, row in (("m0", "b", 0), ("m1", "a", 0), ("m1", "c", 2)):
        first, second = agents[agent].rewards.astype(np.float64)
        assert batches[module_id]["returns_to_go"][row] == first + DISCOUNTS[module_id] * second


@given(
    episodes=episode_lists() | multi_agent_episode_lists(),
    num_learners=st.integers(1, 6),
    lookback=st.integers(0, 5),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_shared_out_or_not_the_rows_are_the_same_bit_by_bit(episodes, num_learners, lookback, dtype):
    whole = multi_batch_from_episodes(episodes, dtype, DISCOUNTS.__getitem__)
    hands = share_out(episodes, num_learners, lookback=lookback, discount_of=DISCOUNTS.__getitem__)
    parts = [multi_batch_from_episodes(hand, dtype, DISCOUNTS.__getitem__) for hand in hands]
    for module_id, batch in whole.items():
        own = [part[module_id] for part in parts if module_id in part]
        assert all(num_rows(part) > 0 for part in own)
        joined = {name: torch.cat([part[name] for part in own]) for name in batch}
        order = np.lexsort((joined["observations"][:, 1], joined["observations"][:, 0]))  # by episode, then step
        for name, wanted in batch.items():
            assert bits(joined[name][order]) == bits(wanted), name


def test_returns_reach_over_cuts_and_never_end_with_a_row():
    length, discount = 90, 0.99
    flags = np.zeros(length, bool)
    ends = np.arange(length) == length - 1
    sparse = Episode(np.zeros((length + 1, 1)), np.zeros((length, 1)), ends.astype(np.float64), ends, flags)
    hands = share_out([sparse], 3, lookback=0, discount_of=lambda _: discount)
    batches = [multi_batch_from_episodes(hand, torch.float64, lambda _: discount)[DEFAULT_MODULE_ID] for hand in hands]
    returns = torch.cat([batch["returns_to_go"] for batch in batches])
    np.testing.assert_allclose(sorted(returns.tolist()), sorted(discount ** np.arange(length)), rtol=1e-12)
    assert sum(int(batch["terminations"].sum()) for batch in batches) == 1
    assert all(batch["next_valid"].all() for batch in batches)


def test_shapes_that_differ_are_named():
    odd = Episode(np.zeros((3, 4)), np.zeros((2, 1)), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool))
    with pytest.raises(
        ConfigError, match=r"episodes of module 'default_module': observations: got shapes \[\(2,\), \("
    ):
        multi_batch_from_episodes([tagged_episode(2), odd], torch.float32, lambda _: 1.0)


def test_what_is_no_episode_is_refused():
    with pytest.raises(ConfigError, match="episodes: got dict; allowed: each an Episode or a MultiAgentEpisode"):
        multi_batch_from_episodes([{"rewards": np.zeros(2)}], torch.float32, lambda _: 1.0)


def test_no_episodes_are_no_batches():
    assert multi_batch_from_episodes([], torch.float32, lambda _: 1.0) == {}


def nested_episode(length, tag):
    plain = tagged_episode(length, tag)
    image = np.full((length + 1, 4, 4, 1), tag, np.uint8)
    image[:, 0, 0, 0] = np.arange(length + 1)
    return replace(
        plain,
        observations={"camera": image, "pose": {"0": plain.observations, "1": np.arange(length + 1)}},
        actions={"arm": plain.actions},
    )


def test_nested_observations_and_actions_become_one_tensor_a_part():
    episodes = [nested_episode(3, 1), nested_episode(2, 2)]
    batch = multi_batch_from_episodes(episodes, torch.float64, lambda _: 0.5)[DEFAULT_MODULE_ID]
    plain = multi_batch_from_episodes([tagged_episode(3, 1), tagged_episode(2, 2)], torch.float64, lambda _: 0.5)
    for mine, theirs in (
        ("observations/pose/0", "observations"),
        ("next_observations/pose/0", "next_observations"),
        ("actions/arm", "actions"),
        ("returns_to_go", "returns_to_go"),
    ):
        assert torch.equal(batch[mine], plain[DEFAULT_MODULE_ID][theirs])
    assert batch["observations/camera"].dtype == torch.uint8
    assert batch["next_observations/camera"][:, 0, 0, 0].tolist() == [1, 2, 3, 1, 2]
    assert batch["observations/pose/1"].tolist() == [0, 1, 2, 0, 1]
    assert num_rows(batch) == 5
    hands = share_out(episodes, 2, lookback=1, discount_of=lambda _: 0.5)
    parts = [multi_batch_from_episodes(hand, torch.float64, lambda _: 0.5)[DEFAULT_MODULE_ID] for hand in hands]
    assert sum(num_rows(part) for part in parts) == 5
    assert sorted(row for part in parts for row in part["observations/pose/1"].tolist()) == [0, 0, 1, 1, 2]


def test_parts_that_only_some_episodes_have_are_named():
    with pytest.raises(ConfigError, match=r"'default_module': observations/camera: got 1 of 2 without it"):
        multi_batch_from_episodes([nested_episode(2, 1), tagged_episode(2)], torch.float32, lambda _: 1.0)
