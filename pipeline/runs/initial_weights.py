"""The weights that a run begins with, from another run; nothing else of that run is taken over."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dask_rl.learners.algorithm import AlgorithmConfig
from dask_rl.learners.batch import ModuleID
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec
from dask_rl.learners.module_checkpoints import load_modules
from dask_rl.learners.saved_module import check_weights, reading
from dask_rl.storage.checkpoints.store import CheckpointStore, load_metadata
from dask_rl.storage.errors import CheckpointError, ConfigError, explain
from dask_rl.storage.spaces import describe_space, spaces_equal

from .job import TrainJob
from .module_choice import choose_module


def load_initial_weights(job: TrainJob, specs: MultiRLModuleSpec) -> dict[ModuleID, dict[str, Any]]:
    """Return the weights of every module of a job as its `initial_weights` have them; empty where it names none.

    Args:
        job: the job.
        specs: its modules, by the spaces of their datasets.

    Raises:
        ConfigError: there is no checkpoint, or one of other modules: another start would not help.
        CheckpointError: it is damaged or foreign.
    """
    if job.initial_weights is None:
        return {}
    path = initial_checkpoint(job.initial_weights)
    metadata = load_metadata(path)
    with reading(path):
        saved, config = (metadata["constructor"][key] for key in ("module_spec", "config"))
        saved_specs = MultiRLModuleSpec.from_json(saved)
        named = {
            key: config.get("module_algorithms", {}).get(key, config["algorithm"])["name"] for key in specs.modules
        }
    for module_id, spec in specs.modules.items():
        choose_module(module_id, saved_specs.modules, f"initial_weights: module of {path}")
        _check_algorithm(path, named[module_id], job.algorithm_of(module_id).name)
        _check_spaces(path, saved_specs.modules[module_id], spec)
    weights = load_modules(path, list(specs.modules))
    for module_id, spec in specs.modules.items():
        _check(path, spec, job.algorithm_of(module_id), weights[module_id])
    return weights


def initial_checkpoint(path: str | Path) -> Path:
    """Return the checkpoint that a path means: itself, or the latest one of a run.

    Raises:
        ConfigError: there is none.
    """
    path = Path(path)
    for store in (path / "checkpoints", path):
        latest = CheckpointStore(store).latest()
        if latest is not None:
            return latest.resolve()
    if not (path / "metadata.json").is_file():
        allowed = "a run with a checkpoint, or a checkpoint"
        raise ConfigError(
            explain("initial_weights", got=f"{path}, which is neither", allowed=allowed, fix="correct it")
        )
    return path.resolve()


def _check_algorithm(path: Path, saved: str, wanted: str) -> None:
    if saved != wanted:
        fix = "choose another run, or begin without"
        raise ConfigError(explain(f"initial_weights: {path}", got=f"weights of {saved}", allowed=wanted, fix=fix))


def _check_spaces(path: Path, saved: RLModuleSpec, wanted: RLModuleSpec) -> None:
    """Refuse other actions; the bounds of observations may move with the data, their shapes the weights tell."""
    if not spaces_equal(saved.action_space, wanted.action_space):
        raise ConfigError(
            explain(
                f"initial_weights: {path}",
                got=f"a module for actions in {describe_space(saved.action_space)}",
                allowed=f"the dataset's {describe_space(wanted.action_space)}",
                fix="choose another run, or begin without",
            )
        )


def _check(path: Path, spec: RLModuleSpec, algorithm: AlgorithmConfig, weights: Mapping[str, Any]) -> None:
    try:
        check_weights(spec, algorithm, weights, path)
    except CheckpointError as error:  # sound, but of other networks than this job's
        raise ConfigError(f"initial_weights: {error}") from None
