"""Episodes whose rows can be told apart, and strategies for lists of them."""

import numpy as np
from hypothesis import strategies as st

from dask_rl.storage.episode import Episode
from dask_rl.storage.multi_agent_episode import MultiAgentEpisode


def tagged_episode(length, tag=0, *, terminated=True, has_final=True):
    """An episode whose observation at step t is (tag, t), and whose rewards are no round numbers."""
    ends = np.arange(length) == length - 1
    observations = np.stack([np.full(length + 1, tag), np.arange(length + 1)], axis=1).astype(np.float32)
    rewards = np.random.default_rng(tag).normal(size=length).astype(np.float32)
    actions = np.arange(length, dtype=np.float32)[:, None]
    return Episode(
        observations,
        actions,
        rewards,
        ends & terminated,
        ends & (not terminated),
        has_final_observation=has_final,
        id=tag,
    )


@st.composite
def episode_lists(draw, max_size=12, max_length=40):
    """One to `max_size` episodes of one agent; episode i has the tag i."""
    lengths = draw(st.lists(st.integers(1, max_length), min_size=1, max_size=max_size))
    return [
        tagged_episode(length, tag, terminated=draw(st.booleans()), has_final=draw(st.booleans()))
        for tag, length in enumerate(lengths)
    ]


@st.composite
def multi_agent_episode_lists(draw, max_size=5, module_ids=("m0", "m1")):
    """One to `max_size` episodes of one to three agents, which may be absent; each agent has a tag of its own."""
    episodes = []
    for number in range(draw(st.integers(1, max_size))):
        agents, modules, env_steps = {}, {}, {}
        for place in range(draw(st.integers(1, 3))):
            steps = sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=20)))
            agents[f"agent{place}"] = tagged_episode(len(steps), 10 * number + place, has_final=draw(st.booleans()))
            modules[f"agent{place}"] = draw(st.sampled_from(module_ids))
            env_steps[f"agent{place}"] = np.array(steps)
        episodes.append(MultiAgentEpisode(agents, modules, env_steps))
    return episodes
