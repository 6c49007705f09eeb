import pickle

import numpy as np
import pytest

import dask_rl
from dask_rl.storage import Episode, InvalidDataError, MultiAgentEpisode


def agent(length):
    flags = np.zeros(length, bool)
    return Episode(np.zeros((length + 1, 2)), np.zeros(length), np.zeros(length), flags, flags)


def build(agents=None, module_ids=None, env_steps=None):
    return MultiAgentEpisode(
        agents or {"b": agent(3), "a": agent(2)},
        module_ids or {"a": "m", "b": "m"},
        env_steps or {"a": np.array([0, 4]), "b": np.array([1, 2, 3])},
    )


def test_its_length_is_in_environment_steps():
    episode = build()
    assert len(episode) == 5
    assert episode.num_agent_steps == 5
    late = build(env_steps={"a": np.array([7, 1000]), "b": np.array([0, 1, 2], np.int8)})
    assert len(late) == 1001
    assert late.num_agent_steps == 5


def test_it_is_public_and_travels():
    assert dask_rl.MultiAgentEpisode is MultiAgentEpisode
    copy = pickle.loads(pickle.dumps(build()))  # noqa: S301
    assert len(copy) == 5
    assert copy.env_steps["a"].tolist() == [0, 4]


def test_no_agent_is_refused():
    with pytest.raises(InvalidDataError, match="multi-agent episode: got no agent; allowed: at least 1"):
        MultiAgentEpisode({}, {}, {})


@pytest.mark.parametrize("name", ["module_ids", "env_steps"])
def test_every_agent_has_its_module_and_its_steps(name):
    given = {"module_ids": {"a": "m"}, "env_steps": {"a": np.array([0, 4]), "c": np.array([1, 2, 3])}}
    with pytest.raises(InvalidDataError, match=rf"{name}: got agents \[.*\]; allowed: \['a', 'b'\]"):
        build(**{name: given[name]})


@pytest.mark.parametrize(
    ("steps", "got"),
    [
        ([0, 4], "list"),
        (np.array([0.0, 4.0]), r"float64 of shape \(2,\)"),
        (np.array([0, 4], np.uint64), r"uint64 of shape \(2,\)"),
        (np.array([0, 4, 5]), r"int64 of shape \(3,\)"),
        (np.array([[0, 4]]), r"int64 of shape \(1, 2\)"),
        (np.array([-1, 4]), "-1"),
        (np.array([4, 4]), "4 after 4"),
        (np.array([4, 3]), "3 after 4"),
        (np.array([127, -128], np.int8), "-128 after 127"),
    ],
)
def test_environment_steps_are_increasing_integers(steps, got):
    with pytest.raises(InvalidDataError, match=rf"env_steps of agent 'a': got {got}; allowed: "):
        build(env_steps={"a": steps, "b": np.array([1, 2, 3])})
