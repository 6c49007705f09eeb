"""What a job's dataset becomes for its learners: spaces, transforms, one source of batches each."""

from dataclasses import dataclass
from typing import Any

from dask_rl.learners.algorithms.registry import get_algorithm
from dask_rl.learners.batch import DEFAULT_MODULE_ID
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec
from dask_rl.pipeline.feed.config import FeedConfig
from dask_rl.pipeline.feed.source import DatasetSource, plan_feed
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.stats import column_statistics
from dask_rl.storage.transforms import Normalize, ScaleReward

from .job import TrainJob


@dataclass(frozen=True)
class TrainingData:
    """A dataset prepared for a job."""

    sources: tuple[DatasetSource, ...]
    """One for each learner."""
    module_spec: MultiRLModuleSpec
    content_hash: str
    num_transitions: int
    """Usable transitions."""
    normalize: Normalize | None
    """Standardisation of the observations, or None."""
    ref_scores: tuple[float, float] | None
    """Returns of a random policy and an expert, where they are known."""
    facts: dict[str, Any]
    """What the run records about the dataset."""


def open_training_data(job: TrainJob) -> TrainingData:
    """Open the dataset of a job, check that they fit, compute what its transforms need.

    Raises:
        DatasetError: the dataset is missing or damaged.
        ConfigError: batch size, shards and learners do not fit it, or the algorithm does not know its spaces.
    """
    algorithm = get_algorithm(job.algorithm.name)
    with OfflineDataset.open(job.dataset) as dataset:
        spec = RLModuleSpec(dataset.observation_space, dataset.action_space)
        algorithm(job.algorithm).module_class(spec)
        normalize = None
        if job.algorithm.normalize_observations:
            normalize = Normalize.from_statistics(column_statistics(dataset, "observations"))
        plan = plan_feed(_feed_config(job, algorithm.required_fields, normalize), max(1, job.learners.num_learners))
        facts = dataset.describe() | {
            "ref_scores": dataset.ref_scores,
            "num_transitions": plan.num_positions,
            "num_episodes_used": plan.num_episodes,
            "steps_per_epoch": plan.steps_per_epoch,
        }
        return TrainingData(
            sources=plan.sources,
            module_spec=MultiRLModuleSpec({DEFAULT_MODULE_ID: spec}),
            content_hash=dataset.content_hash,
            num_transitions=plan.num_positions,
            normalize=normalize,
            ref_scores=dataset.ref_scores,
            facts=facts,
        )


def _feed_config(job: TrainJob, fields: tuple[str, ...], normalize: Normalize | None) -> FeedConfig:
    transforms: dict[str, tuple[Any, ...]] = {}
    if normalize is not None:
        transforms["observations"] = (normalize,)
    if (job.data.reward_scale, job.data.reward_shift) != (1.0, 0.0):
        transforms["rewards"] = (ScaleReward(job.data.reward_scale, job.data.reward_shift),)
    top_fraction = job.algorithm.top_fraction
    return FeedConfig(
        dataset=job.dataset,
        fields=fields,
        batch_size=job.batch_size,
        num_shards=job.num_shards,
        seed=job.seed,
        transforms=transforms,
        discount=job.algorithm.discount,
        top_fraction=top_fraction if top_fraction < 1 else None,
        dtype="float64" if job.learners.precision == "fp64" else "float32",
        block_rows=job.data.block_rows,
        window_rows=job.data.window_rows,
        resident=job.data.resident,
        memory_budget_bytes=job.data.memory_budget_bytes,
    )
