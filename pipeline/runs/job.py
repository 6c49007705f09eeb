"""A training job: what a user writes in YAML, checked as a whole before anything starts."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Annotated, Any

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dask_rl.learners.algorithm import Algorithm, AlgorithmConfig
from dask_rl.learners.algorithms.registry import algorithm_names, get_algorithm
from dask_rl.learners.batch import DEFAULT_MODULE_ID, ModuleID
from dask_rl.learners.config import LearnersConfig, Seed
from dask_rl.learners.module import validate_module_id
from dask_rl.pipeline.feed.sampling import Padding, Sampler, Sampling
from dask_rl.pipeline.rollouts.evaluate import EvaluationConfig
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.files import check_local
from dask_rl.storage.locate import check_no_password

from .batch_config import BatchConfig
from .clusters.config import ClusterConfig
from .config_errors import validate
from .loggers.config import LoggerConfigs
from .module_choice import choose_module
from .own_modules import ImportName, Imports, import_modules
from .yaml_file import override_value, parse_mapping, read_text


class CheckpointConfig(BaseModel):
    """When to save the run, and what to keep."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    every_steps: int | None = Field(None, ge=1)
    """Steps between checkpoints; default: at evaluations, at the end and on interruption only."""
    keep_last: int = Field(2, ge=1)
    """Newest checkpoints to keep."""
    keep_best: bool = True
    """Keep the checkpoint with the best evaluation besides."""


class DataConfig(BaseModel):
    """What happens to the data between the dataset and the learners."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    reward_scale: float = Field(1.0, gt=0)
    """Rewards are multiplied by this."""
    reward_shift: float = 0.0
    """Then this is added to them."""
    resident: bool | None = None
    """Hold the data in memory, or stream it; default: by its size."""
    memory_budget_bytes: int | None = Field(None, ge=1)
    """Bound on the memory of one learner's data, divided evenly among modules; default: a quarter of the free memory,
    above which data is streamed. A budget may make windows smaller, and so changes the order of the data."""
    block_rows: int | None = Field(None, ge=1)
    """Transitions of a block; default: about 64 MB."""
    window_rows: int | None = Field(None, ge=1)
    """Transitions that are shuffled together; default: four blocks."""
    sampler: Sampler = "epoch"
    """epoch: each transition once in every pass; uniform: drawn with replacement from the rows of each window;
    sequences: with each step those before or after it, for algorithms that take them."""
    sequence_length: int | None = Field(None, ge=1)
    """Steps of a sequence, for `sampler: sequences`."""
    padding: Padding = "left"
    """Sequences end at their step, padded before the episode's first; right: begin there, padded behind its last."""
    n_step: int = Field(1, ge=1)
    """Rewards are summed over so many steps, discounted; the next observation is the one behind them."""
    frame_stack: int = Field(1, ge=1)
    """Frames of an observation: the last so many, an episode's first one repeated before it."""
    frame_stack_fields: tuple[str, ...] | None = None
    """Observations that are stacked, such as observations/camera; default: images of bytes."""

    @property
    def sampling(self) -> Sampling:
        """What one sample is made of."""
        return Sampling(**{item.name: getattr(self, item.name) for item in fields(Sampling)})

    @model_validator(mode="after")
    def _is_a_sampling(self) -> "DataConfig":
        _ = self.sampling
        return self


def _dataset(value: Any) -> Any:
    by_module = isinstance(value, Mapping) and value
    if not isinstance(value, str) and not (by_module and all(isinstance(path, str) for path in value.values())):
        allowed = "a valid string, or one for each module: {module_id: path}"
        raise ConfigError(explain("dataset", got=value, allowed=allowed, fix="give it a path"))
    for path in value.values() if by_module else (value,):
        check_no_password("dataset", path)
    for module_id in value if by_module else ():
        if not isinstance(module_id, str):
            raise ConfigError(explain("module id", got=repr(module_id), allowed="a valid string", fix="quote it"))
        validate_module_id(module_id)
    return value


def _algorithm(value: Any, place: str = "algorithm") -> Any:
    if not isinstance(value, Mapping):
        return value
    if "name" not in value:
        raise ConfigError(
            explain(
                place,
                got=dict(value),
                allowed=", ".join(algorithm_names()),
                fix="add its name: {name: bc}",
            )
        )
    return validate(get_algorithm(value["name"]).Config, value, place)


def _module_algorithms(value: Any, info: ValidationInfo) -> Any:
    """Complete the settings of modules that name no algorithm of their own by those of `algorithm`."""
    shared = info.data.get("algorithm")
    if not isinstance(value, Mapping) or shared is None:
        return value
    complete = {}
    for module_id, settings in value.items():
        if isinstance(settings, Mapping) and "name" not in settings:
            settings = shared.model_dump() | dict(settings)
        complete[module_id] = _algorithm(settings, f"modules.{module_id}")
    return complete


def _check_sampling(algorithm: type[Algorithm[Any]], data: DataConfig) -> None:
    """Refuse samples that an algorithm does not take: its losses would be of something else, in silence."""
    if data.sampler == "sequences" and not algorithm.takes_sequences:
        got, allowed = f"sequences, for {algorithm.name}, which learns from single steps", "epoch, uniform"
        raise ConfigError(explain("data.sampler", got=got, allowed=allowed, fix="leave out `sampler`"))
    if data.n_step > 1 and not algorithm.takes_n_step:
        got = f"{data.n_step}, for {algorithm.name}, whose targets are of one step"
        raise ConfigError(explain("data.n_step", got=got, allowed=1, fix="leave out `n_step`"))


def _default_cluster(values: Mapping[str, Any]) -> ClusterConfig:
    learners = values.get("learners", LearnersConfig())
    return ClusterConfig(kind="local" if learners.num_learners else "in_process")


class TrainJob(BaseModel):
    """One training run; the same job is always the same run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    imports: tuple[ImportName, ...] = ()
    """Modules that `dask-rl train` and `dask-rl jobs` import first, such as one that registers an algorithm of your
    own; from the working directory, PYTHONPATH or what is installed. Only for the file that they are given: that in a
    run's directory imports nothing."""
    dataset: Annotated[str | dict[ModuleID, str], BeforeValidator(_dataset)]
    """Path or URL of a dataset; or, to train several modules, one for each: {module_id: path}."""
    algorithm: Annotated[SerializeAsAny[AlgorithmConfig], BeforeValidator(_algorithm)]
    """Name of the algorithm and its settings."""
    modules: Annotated[dict[ModuleID, SerializeAsAny[AlgorithmConfig]], BeforeValidator(_module_algorithms)] = {}
    """Algorithms of modules that differ, by module id. Settings without a name are those that differ from
    `algorithm`; with a name they are complete."""
    num_steps: int = Field(ge=1)
    """Gradient steps of the whole run."""
    batch_size: int = Field(256, ge=1)
    """Rows of one step over all learners, of each module; a multiple of num_shards."""
    num_shards: int = Field(8, ge=1)
    """Data shards; at least the number of learners. Fixed for a run, whatever the number of learners."""
    seed: Seed = 0
    """Seed of the initial weights, the order of the data and all noise."""
    data: DataConfig = DataConfig()
    """Scaling of rewards, what a sample is made of, and where the data is held."""
    learners: LearnersConfig = LearnersConfig()
    """Number, place and time limits of the learners."""
    cluster: ClusterConfig = Field(default_factory=_default_cluster)
    """Where they run; default: local with learners, in_process without."""
    evaluation: EvaluationConfig | None = None
    """Rollouts in an environment; default: none."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When to save."""
    initial_weights: str | None = Field(None, min_length=1)
    """Run or checkpoint whose weights it begins with, of the same modules; default: those that follow from seed."""
    loggers: LoggerConfigs = ()
    """Trackers that hear its metrics too: {name: tensorboard}, {name: mlflow, tracking_uri: …}; see loggers/."""
    batch: BatchConfig = BatchConfig()
    """What `dask-rl jobs` does with it; see batch_config."""
    run: str = Field(min_length=1)
    """Directory of the run; under `dask-rl jobs` that of all its runs."""

    @field_validator("run", "initial_weights")
    @classmethod
    def _is_local(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        check_local(str(info.field_name), value)
        if "\0" in value:
            raise ValueError("a path without null bytes")
        return value

    @property
    def datasets(self) -> dict[ModuleID, str]:
        """Path or URL of each module's dataset."""
        return {DEFAULT_MODULE_ID: self.dataset} if isinstance(self.dataset, str) else self.dataset

    def algorithm_of(self, module_id: ModuleID) -> AlgorithmConfig:
        """Return the settings that a module trains with."""
        return self.modules.get(module_id, self.algorithm)

    def evaluated_module(self) -> ModuleID:
        """Return the module that evaluations are about; raise ConfigError where that is not clear."""
        module_id = None if self.evaluation is None else self.evaluation.module_id
        return choose_module(module_id, self.datasets, "evaluation.module_id")

    @model_validator(mode="after")
    def _names_its_modules(self) -> "TrainJob":
        for module_id in self.modules:
            choose_module(module_id, self.datasets, "module in modules")
        if self.evaluation is not None:
            self.evaluated_module()
        self.batch.check_evaluation(self.evaluation)
        return self

    @model_validator(mode="after")
    def _can_be_learned_from(self) -> "TrainJob":
        for module_id in self.datasets:
            _check_sampling(get_algorithm(self.algorithm_of(module_id).name), self.data)
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainJob":
        if self.batch_size % self.num_shards:
            below = self.batch_size // self.num_shards * self.num_shards
            choices = " or ".join(str(size) for size in (below, below + self.num_shards) if size)
            raise ConfigError(
                explain(
                    "batch_size",
                    got=self.batch_size,
                    allowed=f"a multiple of num_shards={self.num_shards}",
                    fix=f"use {choices}",
                )
            )
        num_learners = self.learners.num_learners
        if num_learners > self.num_shards:
            raise ConfigError(
                explain(
                    "learners.num_learners",
                    got=num_learners,
                    allowed=f"at most num_shards={self.num_shards}",
                    fix="raise num_shards",
                )
            )
        if num_learners and self.cluster.kind == "in_process":
            raise ConfigError(
                explain(
                    "cluster.kind",
                    got=f"in_process with {num_learners} learners",
                    allowed="in_process with learners.num_learners=0",
                    fix="use cluster.kind=local",
                )
            )
        return self

    def to_yaml(self) -> str:
        """Return the whole job, defaults included, as YAML that `load_job` reads back equal."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_job(path: str | os.PathLike[str], overrides: Iterable[str] = (), *, run_imports: bool = False) -> TrainJob:
    """Read a job from a YAML file.

    Args:
        path: the file.
        overrides: `a.b=c` each; c is read as YAML.
        run_imports: import the modules that it names; for files that the user wrote, as this runs their code.

    Raises:
        ConfigError: one line per problem.
    """
    return parse_job(read_text(path), overrides, str(path), run_imports=run_imports)


def parse_job(text: str, overrides: Iterable[str] = (), source: str = "job", *, run_imports: bool = False) -> TrainJob:
    """Build a job from YAML text; see `load_job`."""
    values = parse_mapping(text, source)
    for override in overrides:
        override_value(values, override)
    if run_imports:
        import_modules(validate(Imports, {"imports": values.get("imports", ())}).imports)
    return validate(TrainJob, values)
