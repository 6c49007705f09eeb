"""Learners that train on episodes of several agents."""

import numpy as np
import numpy.testing as npt
import pytest
from learner_cases import make_batch, make_learner, weights
from learner_peers import run_in_threads

from dask_rl.learners.request import UpdateRequest
from dask_rl.learners.splitting import plan_episode_update
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError
from dask_rl.storage.multi_agent_episode import MultiAgentEpisode

MODULES = ("a", "b", "rare")


def agent_episode(length, seed):
    batch = {name: tensor.numpy() for name, tensor in make_batch("continuous", length + 1, seed).items()}
    ends = np.arange(length) == length - 1
    columns = (batch["observations"], batch["actions"][:-1], batch["rewards"][:-1])
    return Episode(*columns, ends, np.zeros(length, bool))


def make_episodes():
    """20 steps of a, 14 of b that joins late, one of rare."""
    first = MultiAgentEpisode(
        {"x": agent_episode(12, 0), "y": agent_episode(8, 1)},
        {"x": "a", "y": "b"},
        {"x": np.arange(12), "y": np.arange(15, 23)},
    )
    second = MultiAgentEpisode(
        {"x": agent_episode(8, 2), "y": agent_episode(6, 3), "z": agent_episode(1, 4)},
        {"x": "a", "y": "b", "z": "rare"},
        {"x": np.arange(0, 16, 2), "y": np.arange(1, 13, 2), "z": np.array([5])},
    )
    return [first, second]


def requests(num_learners, minibatch_size=None):
    plan = plan_episode_update(make_episodes(), num_learners, 1, minibatch_size, lookback=2, discount_of=lambda _: 0.9)
    return [
        UpdateRequest(
            1,
            episodes=shares,
            num_minibatches=plan.num_minibatches,
            minibatch_size=minibatch_size,
            modules_to_skip=plan.modules_to_skip,
        )
        for shares in plan.shares
    ]


def test_two_learners_learn_what_one_does():
    alone = make_learner({"name": "bc"}, modules=MODULES)
    result = alone.run(requests(1)[0])
    assert {module_id: result[module_id]["num_rows"] for module_id in MODULES} == {"a": 20, "b": 14, "rare": 1}

    learners = [make_learner({"name": "bc"}, modules=MODULES) for _ in range(2)]
    start = {name: value.copy() for name, value in weights(learners[0], "rare").items()}

    def work(collective):
        learner = learners[collective.rank]
        learner.join(collective)
        return learner.run(requests(2)[collective.rank])

    results = run_in_threads(2, work)
    for module_id, rows in (("a", 20), ("b", 14)):
        assert sum(result[module_id]["num_rows"] for result in results) == rows
        for name, wanted in weights(alone, module_id).items():
            for learner in learners:
                npt.assert_allclose(weights(learner, module_id)[name], wanted, rtol=1e-10, atol=1e-13)
    for learner in learners:  # one step over two learners: left out by both
        for name, wanted in start.items():
            npt.assert_array_equal(weights(learner, "rare")[name], wanted)


@pytest.mark.parametrize("size", [3, 8])
def test_learners_take_as_many_full_minibatches(size):
    learners = [make_learner({"name": "bc"}, modules=MODULES) for _ in range(2)]

    def work(collective):
        learners[collective.rank].join(collective)
        return learners[collective.rank].run(requests(2, size)[collective.rank])

    first, second = run_in_threads(2, work)
    steps = first["all_modules"]["num_steps"]
    assert steps == second["all_modules"]["num_steps"] == requests(2, size)[0].num_minibatches
    for module_id in ("a", "b"):
        assert first[module_id]["num_rows"] == second[module_id]["num_rows"] == steps * size


def test_an_agent_of_an_unknown_module_is_refused():
    learner = make_learner({"name": "bc"}, modules=("a",))
    with pytest.raises(ConfigError, match=r"unknown modules \['b', 'rare'\]"):
        learner.run(requests(1)[0])
