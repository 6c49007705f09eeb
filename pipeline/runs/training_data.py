"""What a job's datasets become for its learners: spaces, transforms, batches that can be shared out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dask_rl.learners.algorithms.registry import build_algorithm
from dask_rl.learners.batch import DEFAULT_MODULE_ID, ModuleID
from dask_rl.learners.iterator import SharedData
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec
from dask_rl.pipeline.feed.config import FeedConfig
from dask_rl.pipeline.feed.frames import stacked_space
from dask_rl.pipeline.feed.multi_source import MultiFeedPlan
from dask_rl.pipeline.feed.source import FeedPlan, plan_feed
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.transforms import ScaleReward

from .job import TrainJob
from .standardisation import Normalizers, fit_normalizers


@dataclass(frozen=True)
class ModuleData:
    """The dataset of one module, prepared."""

    spec: RLModuleSpec
    plan: FeedPlan
    content_hash: str
    normalize: Normalizers
    """Standardisation of the observations, by path; empty: none."""
    ref_scores: tuple[float, float] | None
    """Returns of a random policy and an expert, where they are known."""
    facts: dict[str, Any]
    """What the run records about the dataset."""


@dataclass(frozen=True)
class TrainingData:
    """The datasets of a job, prepared, by module id."""

    modules: Mapping[ModuleID, ModuleData]

    @property
    def data(self) -> SharedData:
        """The batches: those of the default module plain, those of others by module id."""
        plans = {module_id: module.plan for module_id, module in self.modules.items()}
        return plans[DEFAULT_MODULE_ID] if list(plans) == [DEFAULT_MODULE_ID] else MultiFeedPlan(plans)

    @property
    def module_spec(self) -> MultiRLModuleSpec:
        """The spaces of every module."""
        return MultiRLModuleSpec({module_id: module.spec for module_id, module in self.modules.items()})

    @property
    def facts(self) -> dict[str, Any]:
        """What the run records: the facts of the only dataset, or `modules` with those of each."""
        facts = {module_id: module.facts for module_id, module in self.modules.items()}
        return next(iter(facts.values())) if len(facts) == 1 else {"modules": facts}

    def epochs(self, num_rows: int) -> dict[ModuleID, float]:
        """Return how many passes over each module's transitions so many rows of it are."""
        return {module_id: num_rows / module.plan.num_positions for module_id, module in self.modules.items()}


def open_training_data(job: TrainJob, generations: Mapping[ModuleID, str] | None = None) -> TrainingData:
    """Open the datasets of a job, check that they fit, compute what its transforms need.

    Args:
        job: the job.
        generations: content hashes of the datasets that its run began with, by module id: what was appended to them
            since is left out. None: the newest.

    Raises:
        DatasetError: a dataset is missing or damaged, or another one than the run began with.
        ConfigError: batch size and shards do not fit it, or the algorithm does not know its spaces.
    """
    wanted = generations or {}
    return TrainingData({name: _open_module(job, name, wanted.get(name)) for name in sorted(job.datasets)})


def _open_module(job: TrainJob, module_id: ModuleID, content_hash: str | None) -> ModuleData:
    settings = job.algorithm_of(module_id)
    algorithm = build_algorithm(settings)
    with OfflineDataset.open(job.datasets[module_id], content_hash=content_hash) as dataset:
        spec = RLModuleSpec(stacked_space(job.data.sampling, dataset), dataset.action_space)
        algorithm.module_class(spec)
        normalize: Normalizers = {}
        if settings.normalize_observations:
            normalize = fit_normalizers(dataset, spec.observation_space)
        feed = _feed_config(job, module_id, algorithm.required_fields, normalize)
        plan = plan_feed(replace(feed, content_hash=dataset.content_hash))
        facts = dataset.describe() | {
            "ref_scores": dataset.ref_scores,
            "num_transitions": plan.num_positions,
            "num_episodes_used": plan.num_episodes,
            "steps_per_epoch": plan.steps_per_epoch,
        }
        return ModuleData(spec, plan, dataset.content_hash, normalize, dataset.ref_scores, facts)


def _feed_config(job: TrainJob, module_id: ModuleID, fields: tuple[str, ...], normalize: Normalizers) -> FeedConfig:
    algorithm = job.algorithm_of(module_id)
    transforms: dict[str, tuple[Any, ...]] = {path: (each,) for path, each in normalize.items()}
    if (job.data.reward_scale, job.data.reward_shift) != (1.0, 0.0):
        transforms["rewards"] = (ScaleReward(job.data.reward_scale, job.data.reward_shift),)
    budget = job.data.memory_budget_bytes
    return FeedConfig(
        dataset=job.datasets[module_id],
        fields=fields,
        batch_size=job.batch_size,
        num_shards=job.num_shards,
        seed=job.seed,
        transforms=transforms,
        discount=algorithm.discount,
        top_fraction=algorithm.top_fraction if algorithm.top_fraction < 1 else None,
        sampling=job.data.sampling,
        dtype="float64" if job.learners.precision == "fp64" else "float32",
        block_rows=job.data.block_rows,
        window_rows=job.data.window_rows,
        resident=job.data.resident,
        memory_budget_bytes=None if budget is None else budget // len(job.datasets),
    )
