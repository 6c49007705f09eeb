"""Settings of the learner group."""

import os
import shutil
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny

from .algorithm import Algorithm, AlgorithmConfig
from .algorithms.registry import get_algorithm, parse_algorithm
from .batch import ModuleID

Seconds = Annotated[float, Field(gt=0, le=1_000_000)]
"""A time limit; beyond eleven days the clocks of sockets overflow."""
Seed = Annotated[int, Field(ge=0, le=2**62)]
"""A seed, with room for the numbers that are added to it below what 64 bits hold."""
COMPILE_REPAYS_AFTER_STEPS = 50_000
"""Compilation takes 10–30 s and saves about half a millisecond a step."""


class LearnersConfig(BaseModel):
    """How many learners there are, on what, and how long they may take."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    num_learners: int = Field(0, ge=0, le=4096)
    """0: one learner in this process, without Dask. 1: one actor. 2 or more: actors with gradient all-reduce."""
    num_cpus_per_learner: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """CPUs that a learner's worker needs; auto: 1 without a GPU, else 0."""
    num_gpus_per_learner: float = Field(0, ge=0)
    """GPUs per learner; may be fractional, where several learners share one."""
    num_threads_per_learner: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """Threads of the learner's maths; auto: the cores that the driver may use divided by all learners, at least 1.
    Set it where learners are on other machines."""
    compile: Literal["off", "on", "auto"] = "auto"
    """Compile losses and gradients; auto: where a run is long enough to repay it and a C++ compiler is there."""
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    """fp32; bf16: matrix products in bfloat16, parameters in float32; fp64: everything in float64."""
    transport: Literal["auto", "gloo", "nccl"] = "auto"
    """What carries the gradients; auto: nccl where every learner has a whole GPU, else gloo."""
    max_requests_in_flight_per_learner: int = Field(3, ge=1)
    """Update requests that a learner may have queued; asynchronous ones beyond that are dropped, on all learners."""
    startup_timeout_seconds: Seconds = 300
    """Bound on learners to be built and to join, on the first step with its compilation, and on any step of a single
    learner."""
    workers_timeout_seconds: Seconds = 30
    """Bound on the wait for enough workers to be there."""
    collective_timeout_seconds: Seconds = 30
    """Bound on one exchange of gradients; a learner that keeps the others waiting for so long is replaced."""
    data_timeout_seconds: Seconds = 120
    """Bound on waiting for one block of data."""
    health_timeout_seconds: Seconds = 30
    """A learner whose process answers no question for so long is given up and replaced."""
    replacement_timeout_seconds: Seconds = 60
    """Bound on the wait for a worker in place of a lost one; then the run saves and ends, or see elastic."""
    elastic: bool = False
    """Go on with fewer learners where workers stay missing, and with more, up to num_learners, when workers come."""
    max_restarts: int = Field(20, ge=0)
    """Lost learners that are replaced within restart_window_seconds; one more ends the run."""
    restart_window_seconds: Seconds = 600
    """The time over which max_restarts counts."""
    update_timeout_seconds: Seconds = 3600
    """Bound on one update call on a learner, however many steps it makes."""
    on_nonfinite: Literal["skip", "raise"] = "skip"
    """Non-finite gradients: skip the step on all learners and count it, or stop."""

    def resolved(self, num_steps: int) -> "LearnersConfig":
        """Return a copy without any auto, to be saved with the run: a resumed run must not decide otherwise."""
        compile_ = self.compile
        if compile_ == "auto":
            repays = num_steps >= COMPILE_REPAYS_AFTER_STEPS and shutil.which("g++") is not None
            compile_ = "on" if repays else "off"
        threads = self.num_threads_per_learner
        if threads == "auto":
            threads = max(1, len(os.sched_getaffinity(0)) // max(1, self.num_learners))
        cpus = self.num_cpus_per_learner
        if cpus == "auto":
            cpus = 0 if self.num_gpus_per_learner else 1
        transport = self.transport
        if transport == "auto":
            transport = "nccl" if self.num_gpus_per_learner >= 1 else "gloo"
        return self.model_copy(
            update={
                "compile": compile_,
                "num_threads_per_learner": threads,
                "num_cpus_per_learner": cpus,
                "transport": transport,
            }
        )


def _as_algorithm(value: Any) -> Any:
    return parse_algorithm(value) if isinstance(value, dict) else value


AnyAlgorithmConfig = Annotated[SerializeAsAny[AlgorithmConfig], BeforeValidator(_as_algorithm)]
"""The config of any registered algorithm."""


class LearnerGroupConfig(BaseModel):
    """Everything that makes a learner but its data and its spaces."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    algorithm: AnyAlgorithmConfig
    """The algorithm's settings, with its name."""
    module_algorithms: dict[ModuleID, AnyAlgorithmConfig] = {}
    """Settings of modules that differ, by module id; a complete algorithm each."""
    modules_to_update: tuple[ModuleID, ...] | None = None
    """The modules that updates train; None: all."""
    episode_lookback_horizon: int = Field(0, ge=0)
    """Steps before a cut that the later part of an episode keeps for context, when episodes are shared out."""
    learners: LearnersConfig = LearnersConfig()
    """Number, place and time limits of the learners."""
    seed: Seed = 0
    """Seed of initial weights and of all noise."""
    num_steps: int = Field(0, ge=0)
    """Planned length of the run in steps, for schedules that end with it; 0: open-ended."""

    def algorithm_of(self, module_id: ModuleID) -> AlgorithmConfig:
        """Return the settings that a module trains with."""
        return self.module_algorithms.get(module_id, self.algorithm)

    def without_module(self, module_id: ModuleID) -> "LearnerGroupConfig":
        """Return a copy without a module's settings."""
        algorithms = {id_: settings for id_, settings in self.module_algorithms.items() if id_ != module_id}
        chosen = self.modules_to_update
        if chosen is not None:
            chosen = tuple(id_ for id_ in chosen if id_ != module_id)
        return self.model_copy(update={"module_algorithms": algorithms, "modules_to_update": chosen})

    def algorithm_classes(self) -> list[type[Algorithm[Any]]]:
        """Return the classes of all algorithms in use, for processes that have not registered them."""
        names = {settings.name for settings in (self.algorithm, *self.module_algorithms.values())}
        return [get_algorithm(name) for name in sorted(names)]
