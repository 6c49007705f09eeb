"""State as a tree of named components; saving, restoring and building from a path."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from dask_rl.storage.checkpoint import load_checkpoint, save_checkpoint

from .config import LearnerGroupConfig
from .module import MultiRLModuleSpec

State = dict[str, Any]
"""Nested dicts; leaves are tensors, arrays or JSON values. A component is a path such as "learner/rl_module/p0"."""

Components = str | Collection[str] | None


def select_state(state: Mapping[str, Any], components: Components = None, not_components: Components = None) -> State:
    """Return the parts of a state under one of `components` (None: all) and under none of `not_components`."""
    wanted, unwanted = _paths(components), _paths(not_components) or []

    def walk(node: Mapping[str, Any], path: tuple[str, ...]) -> State:
        out: State = {}
        for key, value in node.items():
            here = (*path, key)
            if any(here == other for other in unwanted):
                continue
            inside = wanted is None or any(here[: len(other)] == other for other in wanted)
            above = wanted is not None and any(other[: len(here)] == here for other in wanted)
            if isinstance(value, Mapping) and (inside or above):
                part = walk(value, here)
                if part or inside:
                    out[key] = part
            elif inside:
                out[key] = value
        return out

    return walk(state, ())


def _paths(components: Components) -> list[tuple[str, ...]] | None:
    if components is None:
        return None
    names = [components] if isinstance(components, str) else list(components)
    return [tuple(name.split("/")) for name in names]


def to_arrays(state: Any) -> Any:
    """Return a state with its tensors as numpy arrays, for storage that knows no torch."""
    if isinstance(state, Mapping):
        return {key: to_arrays(value) for key, value in state.items()}
    return state.detach().cpu().numpy() if isinstance(state, torch.Tensor) else state


def describe(class_name: str, config: LearnerGroupConfig, module_spec: MultiRLModuleSpec) -> dict[str, Any]:
    """Return the metadata of what is built from a config and specs: its class's name and these as JSON values."""
    constructor = {"config": config.model_dump(mode="json"), "module_spec": module_spec.to_json()}
    return {"class_name": class_name, "constructor": constructor}


class Checkpointable(ABC):
    """Something whose state can be got, set, saved and restored, whole or by component."""

    @abstractmethod
    def get_state(self, components: Components = None, *, not_components: Components = None) -> State:
        """Return the state, or the parts of it under `components` and not under `not_components`."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over the parts that `state` holds; leave the others."""

    @abstractmethod
    def get_metadata(self) -> dict[str, Any]:
        """Return the class's registered name and its constructor arguments, as JSON values."""

    def save_to_path(self, path: str | Path | None = None) -> Path:
        """Write the state to a new directory, atomically; return it.

        Args:
            path: the directory. None: one in the system's directory for temporary files, which is yours to remove.
        """
        place = Path(tempfile.mkdtemp(prefix="dask-rl-")) / "checkpoint" if path is None else Path(path)
        return save_checkpoint(place, to_arrays(self.get_state()), self.get_metadata())

    def restore_from_path(self, path: str | Path, component: str | None = None) -> None:
        """Take over a saved state, or one component of it.

        Raises:
            CheckpointError: it is missing, damaged or foreign, or has no such component.
        """
        state, _ = load_checkpoint(Path(path), component=component)
        for name in reversed(component.split("/") if component else []):
            state = {name: state}
        self.set_state(state)
