"""Images and mappings through to a trained policy: collected, trained on two learners, played, saved and loaded."""

import grid_environments
import numpy as np
import pytest

from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.pipeline.rollouts.evaluate import EvaluationConfig, evaluate
from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.pipeline.runs.train import train
from dask_rl.pipeline.runs.trained_policy import load_policy
from dask_rl.storage.checkpoints.store import CheckpointStore, load_checkpoint

IMAGES = {"convolutions": [[16, 3]], "num_features": 32}
CLASSES = {"Grid": grid_environments.Grid, "Rooms": grid_environments.Rooms}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Walks with detours, by environment."""
    folder, made = tmp_path_factory.mktemp("grids"), {}
    for name, cls in CLASSES.items():
        config = CollectConfig(
            environment=f"grid_environments:{name}-v0", num_episodes=250, episodes_per_task=50, action_noise=0.2
        )
        made[name] = folder / f"{name}.zarr"
        collect(config, made[name], policy=grid_environments.GridWalker(cls.observation_space)).close()
    return made


def job_of(datasets, tmp_path, name, num_learners, **settings):
    algorithm = {
        "name": "bc",
        "hidden_sizes": [32],
        "images": IMAGES,
        "learning_rate": 3e-3,
        **settings.pop("algorithm", {}),
    }
    learners = {"num_learners": num_learners, "compile": "off", "num_threads_per_learner": 1}
    return TrainJob.model_validate(
        {
            "dataset": str(datasets[name]),
            "algorithm": algorithm,
            "num_steps": 250,
            "batch_size": 128,
            "run": str(tmp_path / f"{name}-{num_learners}"),
            **settings,
            "learners": {**learners, **settings.get("learners", {})},
        }
    )


@pytest.mark.parametrize(("name", "normalize"), [("Grid", False), ("Rooms", True)])
def test_a_policy_learned_by_two_learners_walks_better_than_random(datasets, tmp_path, cluster_client, name, normalize):
    environment = {
        "environment": f"grid_environments:{name}-v0",
        "num_episodes": 60,
        "episodes_per_task": 30,
        "seed": 999,
    }
    job = job_of(datasets, tmp_path, name, 2, evaluation=environment, algorithm={"normalize_observations": normalize})
    result = train(job, client=cluster_client)
    config = EvaluationConfig(**environment)
    random = collect(CollectConfig(**environment), tmp_path / "random.zarr").episode_returns().mean()
    assert random < 0.4
    assert result.evaluation["return_mean"] > 0.85
    policy = load_policy(result.run)
    assert policy.observation_space == CLASSES[name].observation_space
    again = evaluate(policy, config)
    assert again.return_mean == result.evaluation["return_mean"]
    observation = CLASSES[name]().reset(seed=5)[0]  # as Gymnasium gives one
    assert policy.action_space.contains(policy(observation))


def flat_weights(run):
    weights = load_checkpoint(CheckpointStore(run / "checkpoints").latest(), component="learner/rl_module")[0]
    (module,) = weights.values()
    return np.concatenate([np.asarray(module[name]).ravel() for name in sorted(module)])


@pytest.mark.parametrize("name", ["Rooms"])
def test_one_and_two_learners_end_with_the_same_weights(datasets, tmp_path, cluster_client, name):
    settings = {"num_steps": 20, "algorithm": {"name": "iql"}, "learners": {"precision": "fp64"}}
    one, two = (
        flat_weights(
            train(job_of(datasets, tmp_path, name, size, **settings), client=cluster_client if size else None).run
        )
        for size in (0, 2)
    )
    assert np.linalg.norm(one - two) / np.linalg.norm(one) < 1e-9


def test_a_policy_of_stacked_frames_is_trained_played_and_collects(datasets, tmp_path):
    environment = {"environment": "grid_environments:Grid-v0", "num_episodes": 4}
    settings = {"num_steps": 3, "data": {"frame_stack": 3}, "evaluation": environment}
    result = train(job_of(datasets, tmp_path, "Grid", 0, **settings))
    policy = load_policy(result.run)
    assert policy.observation_space.shape == (3, *CLASSES["Grid"].observation_space.shape)
    assert evaluate(policy, EvaluationConfig(**environment)).returns == tuple(result.evaluation["returns"])
    with collect(CollectConfig(**environment), tmp_path / "more.zarr", policy=policy) as more:
        assert more.observation_space == CLASSES["Grid"].observation_space
