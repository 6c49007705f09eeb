"""The number of learners changes where the work is done, not what is learned."""

import numpy as np
import pytest

from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.pipeline.runs.training_data import open_training_data

ALGORITHM = {"name": "iql", "hidden_sizes": [32, 32], "dropout": 0.1, "normalize_observations": True}


@pytest.fixture(scope="module")
def four_workers():
    """Four worker processes, more than there are cores."""
    with open_cluster(ClusterConfig(log_level="critical"), num_workers=4) as client:
        yield client


def make_job(dataset, learners: LearnersConfig) -> TrainJob:
    sizes = {"num_steps": 600, "batch_size": 48, "num_shards": 12}
    return TrainJob(dataset=str(dataset), algorithm=ALGORITHM, learners=learners, run="unused", **sizes)


def weights_after(dataset, client, num_learners: int, precision: str, num_steps: int) -> np.ndarray:
    learners = LearnersConfig(num_learners=num_learners, precision=precision, compile="off", num_threads_per_learner=1)
    job = TrainJob(
        dataset=str(dataset),
        algorithm=ALGORITHM,
        num_steps=600,
        batch_size=48,
        num_shards=12,
        learners=learners,
        run="x",
    )
    data = open_training_data(job)
    config = LearnerGroupConfig(algorithm=job.algorithm, learners=learners, num_steps=job.num_steps)
    with LearnerGroup(config, module_spec=data.module_spec, client=client) as group:
        if num_steps:
            results = group.update_from_iterators(data.data.shares(max(1, num_learners)), num_iters=num_steps)
            assert len(results) == max(1, num_learners)
            assert sum(result["default_module"]["num_rows"] for result in results) == 48 * num_steps
        states = [
            result.get()
            for result in group.foreach_learner(lambda learner: learner.module["default_module"].state_dict())
        ]
        weights = [np.concatenate([state[name].double().numpy().ravel() for name in sorted(state)]) for state in states]
    for other in weights[1:]:
        np.testing.assert_array_equal(weights[0], other)
    return weights[0]


def distance(weights: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(weights - reference) / np.linalg.norm(reference))


def test_float64_weights_agree_for_any_number_of_learners(continuous_dataset, four_workers):
    reference = weights_after(continuous_dataset, four_workers, 1, "fp64", 600)
    for num_learners in (0, 2, 3, 4):
        weights = weights_after(continuous_dataset, four_workers, num_learners, "fp64", 600)
        assert distance(weights, reference) <= 1e-9, num_learners


def test_float32_weights_agree_over_the_first_steps(continuous_dataset, four_workers):
    references = {steps: weights_after(continuous_dataset, four_workers, 1, "fp32", steps) for steps in (0, 1, 200)}
    for num_learners in (0, 2, 3, 4):
        for steps, bound in ((1, 1e-5), (200, 1e-3)):
            weights = weights_after(continuous_dataset, four_workers, num_learners, "fp32", steps)
            assert distance(weights, references[steps]) <= bound, (num_learners, steps)
    # The bounds mean something only if training moves the weights by more.
    assert distance(references[200], references[0]) > 1e-2


def test_float32_gradients_of_one_step_agree(continuous_dataset, four_workers):
    gradients = {n: first_gradient(continuous_dataset, four_workers, n) for n in (1, 2, 3, 4)}
    for num_learners in (2, 3, 4):
        assert distance(gradients[num_learners], gradients[1]) <= 1e-5, num_learners


def first_gradient(dataset, client, num_learners: int) -> np.ndarray:
    learners = LearnersConfig(num_learners=num_learners, compile="off", num_threads_per_learner=1)
    job = TrainJob(
        dataset=str(dataset),
        algorithm=ALGORITHM,
        num_steps=600,
        batch_size=48,
        num_shards=12,
        learners=learners,
        run="x",
    )
    data = open_training_data(job)
    config = LearnerGroupConfig(algorithm=job.algorithm, learners=learners, num_steps=job.num_steps)
    with LearnerGroup(config, module_spec=data.module_spec, client=client) as group:
        group.update_from_iterators(data.data.shares(num_learners), num_iters=1)
        return group.foreach_learner(lambda learner: learner.flat.grad.double().numpy())[0].get()
