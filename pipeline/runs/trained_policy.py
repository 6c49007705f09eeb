"""The policy of a run: from a learner's weights, or from its checkpoint."""

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.learners.algorithms.registry import parse_algorithm
from dask_rl.learners.batch import ModuleID
from dask_rl.learners.module import MultiRLModuleSpec
from dask_rl.learners.policy import Policy
from dask_rl.learners.saved_module import check_weights, reading
from dask_rl.storage.checkpoints.store import CheckpointStore, load_checkpoint, load_metadata
from dask_rl.storage.errors import CheckpointError, explain

from .module_choice import choose_module
from .run_directory import RunDirectory
from .standardisation import normalizers_from_json


def load_policy(
    run: RunDirectory | str | os.PathLike[str], *, module_id: ModuleID | None = None, best: bool = False
) -> Policy:
    """Return the policy of a run's latest checkpoint, or of the one with the best evaluation.

    Args:
        run: the run, or its directory.
        module_id: which module's policy; None: the only one's.
        best: the best evaluation instead of the latest step.

    Raises:
        ConfigError: the run has no such module, or several where none is named.
        RunStateError: the directory holds no run.
        CheckpointError: there is no checkpoint yet, or it is damaged.
    """
    if not isinstance(run, RunDirectory):
        run = RunDirectory(run).require()
    return load_checkpoint_policy(find_checkpoint(run, best=best), module_id)[0]


def find_checkpoint(run: RunDirectory, *, best: bool = False) -> Path:
    """Return a run's latest checkpoint, or the one with the best evaluation; raises CheckpointError without one."""
    store = CheckpointStore(run.checkpoints)
    path = store.best() if best else store.latest()
    if path is None:
        raise CheckpointError(
            explain(
                f"run {run.path}",
                got="no checkpoint" + (" with an evaluation" if best else ""),
                fix="let it train to its first checkpoint (checkpoint.every_steps)",
            )
        )
    return path


def load_checkpoint_policy(path: Path, module_id: ModuleID | None = None) -> tuple[Policy, int]:
    """Return the policy of a checkpoint's module, by default the only one, and the step that it was saved at."""
    metadata = load_metadata(path)
    with reading(path):
        constructor, step = metadata["constructor"], int(metadata["step"])
        config, specs = constructor["config"], MultiRLModuleSpec.from_json(constructor["module_spec"])
    chosen = choose_module(module_id, specs.modules)
    weights, _ = load_checkpoint(path, component=f"learner/rl_module/{chosen}")
    with reading(path):
        spec = specs.modules[chosen]
        algorithm = parse_algorithm(config.get("module_algorithms", {}).get(chosen, config["algorithm"]))
        check_weights(spec, algorithm, weights, path)
        saved = by_module(metadata["normalize"], specs.modules)[chosen]
        normalize = normalizers_from_json(saved, spec.observation_space)
        return Policy(spec, algorithm, weights, normalize), step


def hash_checkpoint(path: Path) -> str:
    """Return sha256 over the weights in a checkpoint, as `hash_weights` has it over those of the learners."""
    metadata = load_metadata(path)
    with reading(path):
        module_ids = sorted(MultiRLModuleSpec.from_json(metadata["constructor"]["module_spec"]).modules)
    loaded = {name: load_checkpoint(path, component=f"learner/rl_module/{name}")[0] for name in module_ids}
    with reading(path):
        return hash_weights(loaded)


def by_module(saved: Any, module_ids: Collection[ModuleID]) -> Mapping[ModuleID, Any]:
    """Return what a checkpoint's metadata say by module id; version 0.1 wrote it bare, for its only module."""
    if isinstance(saved, Mapping) and saved.keys() == set(module_ids):
        return saved
    return dict.fromkeys(module_ids, saved)


def hash_weights(weights: Mapping[ModuleID, Mapping[str, Any]]) -> str:
    """Return sha256 over the weights in order of module id and name."""
    digest = hashlib.sha256()
    for module_id in sorted(weights):
        for name in sorted(weights[module_id]):
            digest.update(np.ascontiguousarray(np.asarray(weights[module_id][name])).tobytes())
    return digest.hexdigest()
