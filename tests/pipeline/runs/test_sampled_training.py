"""Jobs that name a sampler, through to a policy that is played."""

from typing import Literal

import grid_environments
import pytest
import torch

from dask_rl.learners.algorithms import registry
from dask_rl.learners.algorithms.bc import BC, BCConfig
from dask_rl.learners.batch import observations_of
from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.pipeline.rollouts.evaluate import EvaluationConfig, evaluate
from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.pipeline.runs.train import train
from dask_rl.pipeline.runs.trained_policy import load_policy
from dask_rl.storage.errors import ConfigError

ROOMS = {"environment": "grid_environments:Rooms-v0", "num_episodes": 20}


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    path = tmp_path_factory.mktemp("rooms") / "rooms.zarr"
    policy = grid_environments.GridWalker(grid_environments.Rooms.observation_space)
    collect(CollectConfig(**ROOMS, action_noise=0.3), path, policy=policy).close()
    return str(path)


def job_of(rooms, run, **data):
    return TrainJob.model_validate(
        {
            "dataset": rooms,
            "algorithm": {"name": "iql", "hidden_sizes": [8], "images": {"convolutions": [[4, 3]], "num_features": 8}},
            "num_steps": 8,
            "batch_size": 16,
            "num_shards": 2,
            "data": {"sampler": "uniform", "n_step": 3, "frame_stack": 2, "block_rows": 16, "window_rows": 32, **data},
            "learners": {"num_learners": 0, "compile": "off"},
            "run": str(run),
        }
    )


def test_stacked_frames_and_n_steps_from_the_job_to_the_game(rooms, tmp_path):
    streamed, resident = (
        train(job_of(rooms, tmp_path / str(resident), resident=resident)) for resident in (False, True)
    )
    assert streamed.weights_hash == resident.weights_hash
    single = train(job_of(rooms, tmp_path / "single", n_step=1))
    assert single.weights_hash != resident.weights_hash
    policy = load_policy(resident.run)
    frames = {
        path: (stacked.shape, alone.shape)
        for (path, stacked), alone in zip(
            policy.observation_space.spaces.items(),
            grid_environments.Rooms.observation_space.spaces.values(),
            strict=True,
        )
        if stacked != alone
    }
    ((stacked, alone),) = frames.values()  # the image, and nothing else
    assert stacked == (2, *alone)
    result = evaluate(policy, EvaluationConfig(**ROOMS))
    assert len(result.returns) == 20


class SequenceConfig(BCConfig):
    """Settings."""

    name: Literal["sequence-bc"] = "sequence-bc"


class SequenceBC(BC):
    """Cloning of whole sequences: the mean over the steps of each."""

    name = "sequence-bc"
    Config = SequenceConfig
    takes_sequences = True

    def losses(self, module, batch, noise, phase):
        mask, steps = batch["sequence_mask"], batch["timesteps"]
        assert mask[:, -1].all()
        assert (steps[:, 1:] - steps[:, :-1])[mask[:, :-1]].eq(1).all()
        observations = {path: part.flatten(0, 1) for path, part in observations_of(batch).items()}
        log_probs = module.policy.log_prob(observations, batch["actions"].flatten(0, 1)).reshape(mask.shape)
        return {"policy_loss": (-torch.where(mask, log_probs, 0).sum(1) / mask.sum(1)).sum()}


def test_an_algorithm_that_takes_sequences_gets_them(rooms, tmp_path, monkeypatch):
    monkeypatch.setitem(registry._ALGORITHMS, "sequence-bc", SequenceBC)
    images = {"convolutions": [[4, 3]], "num_features": 8}
    values = job_of(rooms, tmp_path / "run").model_dump() | {
        "algorithm": {"name": "sequence-bc", "hidden_sizes": [8], "images": images},
        "data": {"sampler": "sequences", "sequence_length": 4},
        "num_steps": 4,
    }
    assert train(TrainJob.model_validate(values)).final_metrics["policy_loss"] > 0


def test_frames_that_are_named_must_be_there(rooms, tmp_path):
    with pytest.raises(ConfigError, match=r"frame_stack_fields: got \['observations/radar'\]; allowed: .*observations"):
        train(job_of(rooms, tmp_path / "run", frame_stack_fields=["observations/radar"]))
