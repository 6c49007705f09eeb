"""Learners that train on episodes of several agents."""

import numpy as np
import numpy.testing as npt
import pytest
import torch
from learner_cases import make_batch, make_learner, update, weights
from learner_peers import run_in_threads

from dask_rl.learners.request import UpdateRequest
from dask_rl.learners.splitting import plan_episode_update
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError
from dask_rl.storage.multi_agent_episode import MultiAgentEpisode
from dask_rl.storage.nested import unflatten

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


@pytest.mark.parametrize("kind", ["continuous-nested", "discrete-images"])
def test_nested_episodes_and_images_teach_what_their_rows_do(kind):
    batch = make_batch(kind, 9)
    seen = {path: tensor.numpy() for path, tensor in batch.items()}
    flags = np.zeros(8, bool)
    ends = np.arange(8) == 7
    actions = seen["actions"][:-1]
    episode = Episode(unflatten("observations", seen), actions, seen["rewards"][:-1], ends, flags)
    plan = plan_episode_update([episode], 1, 1, None, lookback=0, discount_of=lambda _: 0.9)
    by_episode, by_rows = (make_learner({"name": "iql"}, kind) for _ in range(2))
    by_episode.run(UpdateRequest(1, episodes=plan.shares[0], num_minibatches=plan.num_minibatches))
    rows = {name: tensor[:-1] for name, tensor in batch.items() if not name.startswith("next_")}
    rows |= {f"next_{path}": batch[path][1:] for path in batch if path.startswith("observations")}
    rows |= {"next_valid": torch.ones(8, dtype=torch.bool), "terminations": torch.from_numpy(ends).double()}
    update(by_rows, rows)
    mine, theirs = weights(by_episode), weights(by_rows)
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    assert not np.array_equal(
        mine["value.layers.0.weight"], weights(make_learner({"name": "iql"}, kind))["value.layers.0.weight"]
    )
