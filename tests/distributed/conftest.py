"""Datasets to train on, and learner groups."""

from contextlib import ExitStack
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from group_cases import SPEC, group_config
from run_commands import run_to_end, write_job

from dask_rl.learners.group import LearnerGroup
from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.storage.episode import Episode
from dask_rl.storage.writer import DatasetWriter


@pytest.fixture(scope="session")
def continuous_dataset(tmp_path_factory) -> Path:
    """40 episodes of 20 to 60 steps, observation 5, action 2, a third of which end in a termination."""
    path = tmp_path_factory.mktemp("data") / "continuous.zarr"
    rng = np.random.default_rng(7)
    writer = DatasetWriter(
        path,
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32),
        action_space=gymnasium.spaces.Box(-2, 2, (2,), np.float32),
        shard_rows=512,
    )
    with writer:
        for number in range(40):
            length = int(rng.integers(20, 60))
            last = np.arange(length) == length - 1
            never = np.zeros(length, np.bool_)
            terminated = number % 3 == 0
            writer.add_episode(
                Episode(
                    observations=rng.normal(size=(length + 1, 5)).astype(np.float32),
                    actions=rng.uniform(-2, 2, (length, 2)).astype(np.float32),
                    rewards=rng.normal(size=length).astype(np.float32),
                    terminations=last if terminated else never,
                    truncations=never if terminated else last,
                    id=number,
                )
            )
        writer.finish()
    return path


@pytest.fixture(scope="session")
def cartpole_dataset(tmp_path_factory) -> Path:
    """30 episodes of CartPole-v1 by chance."""
    path = tmp_path_factory.mktemp("data") / "cartpole.zarr"
    collect(CollectConfig(environment="CartPole-v1", num_episodes=30), path).close()
    return path


@pytest.fixture(params=[0, 2], ids=["local", "two learners"])
def num_learners(request) -> int:
    """One learner in this process, and two processes."""
    return request.param


@pytest.fixture
def open_group(cluster_client):
    """Returns a function of (number of learners, settings) that opens a group, which is shut down after the test."""
    with ExitStack() as stack:

        def make(size, algorithm=None, *, module_spec=SPEC, learner_class=None, should_update=None, **settings):
            options = {} if learner_class is None else {"learner_class": learner_class}
            config = group_config(size, algorithm, **settings)
            group = LearnerGroup(
                config,
                module_spec=module_spec,
                client=cluster_client,
                should_module_be_updated=should_update,
                **options,
            )
            return stack.enter_context(group)

        yield make


@pytest.fixture(scope="session")
def undisturbed_hash(tmp_path_factory, continuous_dataset):
    """The weights of a run that nothing disturbed, by number of learners."""
    directory = tmp_path_factory.mktemp("undisturbed")
    hashes: dict[int, str] = {}

    def get(num_learners: int) -> str:
        if num_learners not in hashes:
            job = write_job(directory / str(num_learners), continuous_dataset, num_learners, checkpoint={})
            hashes[num_learners] = run_to_end(job)["weights_hash"]
        return hashes[num_learners]

    return get
