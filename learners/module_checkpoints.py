"""Checkpoints of single modules, and the modules inside checkpoints of groups."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dask_rl.storage.checkpoints.store import load_checkpoint, load_metadata, save_checkpoint
from dask_rl.storage.errors import CheckpointError, explain

from .batch import ModuleID
from .checkpointable import to_arrays
from .module import RLModuleSpec

_COMPONENT = "learner/rl_module"
_CLASS_NAME = "RLModule"


def save_module(path: str | Path, state: Mapping[str, Any], spec: RLModuleSpec) -> Path:
    """Write one module's parameters and buffers to a new directory."""
    metadata = {"class_name": _CLASS_NAME, "constructor": {"module_spec": spec.to_json()}}
    return save_checkpoint(Path(path), {"rl_module": to_arrays(state)}, metadata)


def load_module(path: str | Path) -> dict[str, Any]:
    """Return the state of a single module: of its own checkpoint, or of a group's with one module.

    Raises:
        CheckpointError: it is missing, damaged, foreign, or has several modules.
    """
    if load_metadata(path).get("class_name") == _CLASS_NAME:
        state: dict[str, Any] = load_checkpoint(Path(path), component="rl_module")[0]
        return state
    modules = load_modules(path)
    if len(modules) != 1:
        fix = "load it as multi_rl_module_ckpt_dir with modules_to_load"
        raise CheckpointError(explain(str(path), got=f"modules {sorted(modules)}", allowed="one module", fix=fix))
    return next(iter(modules.values()))


def load_modules(path: str | Path, module_ids: Collection[ModuleID] | None = None) -> dict[ModuleID, dict[str, Any]]:
    """Return the states of all or some modules of a group's checkpoint.

    Raises:
        CheckpointError: it is missing, damaged or foreign, or lacks one of the modules.
    """
    if load_metadata(path).get("class_name") == _CLASS_NAME:
        fix = "give it in rl_module_ckpt_dirs"
        raise CheckpointError(explain(str(path), got="a single module", allowed="a group's checkpoint", fix=fix))
    if module_ids is None:
        modules: dict[ModuleID, dict[str, Any]] = load_checkpoint(Path(path), component=_COMPONENT)[0]
        return modules
    return {
        module_id: load_checkpoint(Path(path), component=f"{_COMPONENT}/{module_id}")[0]
        for module_id in sorted(module_ids)
    }
