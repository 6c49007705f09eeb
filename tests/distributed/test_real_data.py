"""Policies from other people's data, trained by two learner processes and judged in the environment."""

import pytest

from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.pipeline.runs.train import train
from dask_rl.storage.formats import import_dataset
from dask_rl.storage.formats.base import ImportOptions


@pytest.mark.slow
def test_behaviour_cloning_outlives_the_cartpole_data(sample_data, cluster_client, tmp_path):
    summary = import_dataset(sample_data / "rllib/cartpole/cartpole-v1_large", tmp_path / "cartpole.zarr")
    assert (summary.num_steps, summary.num_episodes) == (4137, 21)
    job = TrainJob(
        dataset=str(tmp_path / "cartpole.zarr"),
        algorithm={"name": "bc"},
        num_steps=1000,
        learners={"num_learners": 2, "compile": "off"},
        evaluation={"environment": "CartPole-v1", "num_episodes": 20},
        run=str(tmp_path / "run"),
    )
    result = train(job, client=cluster_client)
    assert result.evaluation["num_episodes"] == 20
    assert result.evaluation["return_mean"] >= 350  # the data's episodes stop at 200


@pytest.mark.service
@pytest.mark.slow
def test_implicit_q_learning_swings_the_pendulum_up(sample_data, cluster_client, tmp_path):
    options = ImportOptions(environment="Pendulum-v1", normalized_actions=True)
    source = sample_data / "rllib/pendulum/pendulum-v1_enormous"
    summary = import_dataset(source, tmp_path / "pendulum.zarr", options=options)
    assert (summary.num_steps, summary.num_episodes, round(summary.return_mean)) == (16_231, 82, -143)
    job = TrainJob(
        dataset=str(tmp_path / "pendulum.zarr"),
        algorithm={"name": "iql", "hidden_sizes": [128, 128], "learning_rate": 1e-3},
        num_steps=3000,
        data={"reward_scale": 0.1},
        learners={"num_learners": 2, "compile": "off"},
        evaluation={"environment": "Pendulum-v1", "num_episodes": 20},
        run=str(tmp_path / "run"),
    )
    assert train(job, client=cluster_client).evaluation["return_mean"] >= -200
