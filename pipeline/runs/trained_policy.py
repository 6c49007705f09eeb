"""The policy of a run: from a learner's weights, or from its checkpoint."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.learners.algorithm import AlgorithmConfig
from dask_rl.learners.algorithms.registry import parse_algorithm
from dask_rl.learners.batch import DEFAULT_MODULE_ID, ModuleID
from dask_rl.learners.module import MultiRLModuleSpec
from dask_rl.learners.policy import Policy
from dask_rl.storage.checkpoint import CheckpointStore, load_checkpoint
from dask_rl.storage.errors import CheckpointError, explain
from dask_rl.storage.transforms import Normalize

from .run_directory import RunDirectory


def build_policy(
    spec: MultiRLModuleSpec,
    algorithm: AlgorithmConfig,
    weights: Mapping[ModuleID, Mapping[str, Any]],
    normalize: Normalize | None,
    module_id: ModuleID = DEFAULT_MODULE_ID,
) -> Policy:
    """Return the policy of one module."""
    return Policy(spec.modules[module_id], algorithm, weights[module_id], normalize)


def load_policy(run: RunDirectory | str | os.PathLike[str], *, best: bool = False) -> Policy:
    """Return the policy of a run's latest checkpoint, or of the one with the best evaluation.

    Args:
        run: the run, or its directory.
        best: the best evaluation instead of the latest step.

    Raises:
        RunStateError: the directory holds no run.
        CheckpointError: there is no checkpoint yet, or it is damaged.
    """
    if not isinstance(run, RunDirectory):
        run = RunDirectory(run).require()
    return load_checkpoint_policy(find_checkpoint(run, best=best))[0]


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


def load_checkpoint_policy(path: Path) -> tuple[Policy, int]:
    """Return the policy of a checkpoint, and the step that it was saved at."""
    weights, metadata = load_checkpoint(path, component="learner/rl_module")
    constructor = metadata["constructor"]
    normalize = metadata["normalize"]
    policy = build_policy(
        MultiRLModuleSpec.from_json(constructor["module_spec"]),
        parse_algorithm(constructor["config"]["algorithm"]),
        weights,
        None if normalize is None else Normalize.from_json(normalize),
    )
    return policy, int(metadata["step"])


def hash_weights(weights: Mapping[ModuleID, Mapping[str, Any]]) -> str:
    """Return sha256 over the weights in order of module id and name."""
    digest = hashlib.sha256()
    for module_id in sorted(weights):
        for name in sorted(weights[module_id]):
            digest.update(np.ascontiguousarray(np.asarray(weights[module_id][name])).tobytes())
    return digest.hexdigest()
