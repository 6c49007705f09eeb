"""What a job's datasets become for its learners: spaces, transforms, batches that can be shared out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dask_rl.learners.algorithms.registry import build_algorithm
from dask_rl.learners.batch import DEFAULT_MODULE_ID, ModuleID
from dask_rl.learners.iterator import SharedData
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec
from dask_rl.learners.saved_module import reading
from dask_rl.pipeline.feed.config import FeedConfig
from dask_rl.pipeline.feed.frames import stacked_space
from dask_rl.pipeline.feed.layout import RETURNS_TO_GO
from dask_rl.pipeline.feed.multi_source import MultiFeedPlan
from dask_rl.pipeline.feed.source import FeedPlan, plan_feed
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.schema import REWARDS
from dask_rl.storage.transforms import ScaleReward

from .job import TrainJob
from .saved_data import SavedData
from .standardisation import (
    Normalizers,
    collected_space,
    fit_normalizers,
    normalizers_from_json,
    stored_normalizers,
)


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
    """What the run records about the dataset when it begins; empty where it goes on, as they take reading."""


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

    def continues(self, saved: Mapping[ModuleID, SavedData]) -> bool:
        """Tell whether these are the data of a run, in the blocks and windows of a run."""
        return all(
            saved[module_id].content_hash == module.content_hash
            and saved[module_id].rows in (None, (module.plan.feed.block_rows, module.plan.feed.window_rows))
            for module_id, module in self.modules.items()
        )

    def epochs(self, num_rows: int) -> dict[ModuleID, float]:
        """Return how many passes over each module's transitions so many rows of it are."""
        return {module_id: num_rows / module.plan.num_positions for module_id, module in self.modules.items()}


def open_training_data(job: TrainJob, saved: Mapping[ModuleID, SavedData] | None = None) -> TrainingData:
    """Open the datasets of a job, check that they fit, compute what its transforms need.

    Args:
        job: the job.
        saved: what the data of its run were when it began, by module id: it goes on with these, whatever was appended
            since, and however statistics and sizes would come out now. None: it begins.

    Raises:
        DatasetError: a dataset is missing or damaged, or another one than the run began with.
        ConfigError: batch size and shards do not fit it, the algorithm does not know its spaces, or settings are
            without effect.
    """
    _refuse_unread_rewards(job)
    known = saved or {}
    return TrainingData({name: _open_module(job, name, known.get(name)) for name in sorted(job.datasets)})


def _open_module(job: TrainJob, module_id: ModuleID, saved: SavedData | None) -> ModuleData:
    settings = job.algorithm_of(module_id)
    algorithm = build_algorithm(settings)
    content_hash = None if saved is None else saved.content_hash
    with OfflineDataset.open(job.datasets[module_id], content_hash=content_hash) as dataset:
        observation_space = stacked_space(job.data.sampling, dataset, collected_space(dataset))
        spec = RLModuleSpec(observation_space, dataset.action_space)
        algorithm.module_class(spec)
        fitted: Normalizers = {}
        if settings.normalize_observations and saved is None:
            fitted = fit_normalizers(dataset, observation_space)
        elif settings.normalize_observations and saved is not None:
            with reading(f"latest checkpoint of {job.run}"):
                fitted = normalizers_from_json(saved.normalize, observation_space)
        feed = _feed_config(job, module_id, algorithm.required_fields, fitted)
        if saved is not None and saved.rows is not None:
            feed = replace(feed, block_rows=saved.rows[0], window_rows=saved.rows[1])
        plan = plan_feed(replace(feed, content_hash=dataset.content_hash))
        return ModuleData(
            spec=spec,
            plan=plan,
            content_hash=dataset.content_hash,
            normalize=fitted or stored_normalizers(dataset, observation_space),
            ref_scores=dataset.ref_scores,
            facts=_facts(dataset, plan) if saved is None else {},
        )


def _facts(dataset: OfflineDataset, plan: FeedPlan) -> dict[str, Any]:
    return dataset.describe() | {
        "ref_scores": dataset.ref_scores,
        "num_transitions": plan.num_positions,
        "num_episodes_used": plan.num_episodes,
        "steps_per_epoch": plan.steps_per_epoch,
    }


def _refuse_unread_rewards(job: TrainJob) -> None:
    """Refuse rewards that are changed for nobody."""
    if _reward_transforms(job) and not any(
        _reads_rewards(build_algorithm(job.algorithm_of(name)).required_fields) for name in job.datasets
    ):
        raise ConfigError(
            explain(
                "data.reward_scale and data.reward_shift",
                got=f"{job.data.reward_scale:g} and {job.data.reward_shift:g}, for {job.algorithm.name}",
                allowed="1 and 0 where no algorithm of the job reads rewards",
                fix="leave them out",
            )
        )


def _reads_rewards(fields: tuple[str, ...]) -> bool:
    return REWARDS in fields or RETURNS_TO_GO in fields


def _reward_transforms(job: TrainJob) -> tuple[ScaleReward, ...]:
    scale, shift = job.data.reward_scale, job.data.reward_shift
    return () if (scale, shift) == (1.0, 0.0) else (ScaleReward(scale, shift),)


def _feed_config(job: TrainJob, module_id: ModuleID, fields: tuple[str, ...], normalize: Normalizers) -> FeedConfig:
    algorithm = job.algorithm_of(module_id)
    transforms: dict[str, tuple[Any, ...]] = {path: (each,) for path, each in normalize.items()}
    if _reads_rewards(fields) and (of_rewards := _reward_transforms(job)):
        transforms[REWARDS] = of_rewards
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
