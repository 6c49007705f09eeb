"""State as a tree of named components; saving, restoring and building from a path."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from dask_rl.storage.checkpoints.store import load_checkpoint, save_checkpoint
from dask_rl.storage.errors import CheckpointError, ConfigError, explain

from .config import LearnerGroupConfig
from .module import MultiRLModuleSpec

State = dict[str, Any]
"""Nested dicts; leaves are tensors, arrays or JSON values. A component is a path such as "learner/rl_module/p0"."""

Components = str | Collection[str] | None
_MAX_NAMED = 5


def select_state(state: Mapping[str, Any], components: Components = None, not_components: Components = None) -> State:
    """Return the parts of a state under one of `components` (None: all) and under none of `not_components`.

    Raises:
        ConfigError: there is no such component.
    """
    wanted, unwanted = _paths(components), _paths(not_components) or []
    _check_known(state, [*(wanted or []), *unwanted])

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
    names: list[Any] = (
        [components] if isinstance(components, str) or not isinstance(components, Collection) else [*components]
    )
    if wrong := [name for name in names if not isinstance(name, str)]:
        allowed = "paths such as 'rl_module', or a list of them"
        raise ConfigError(explain("components", got=repr(wrong[0]), allowed=allowed, fix="name components"))
    return [tuple(name.split("/")) for name in names]


def _check_known(state: Mapping[str, Any], paths: Iterable[tuple[str, ...]]) -> None:
    """Raise ConfigError where a path leads nowhere."""
    for path in paths:
        node: Any = state
        for depth, key in enumerate(path):
            if not isinstance(node, Mapping) or key not in node:
                known = ["/".join([*path[:depth], name]) for name in node] if isinstance(node, Mapping) else []
                got = repr("/".join(path))
                raise ConfigError(explain("components", got=got, allowed=known, fix="correct the name"))
            node = node[key]


def _first_lack(state: Any, path: tuple[str, ...]) -> str:
    """Return the first part of a path that is not in a state; "" where it is."""
    for depth, name in enumerate(path, 1):
        if not isinstance(state, Mapping) or name not in state:
            return "/".join(path[:depth])
        state = state[name]
    return ""


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
    def part_names(self) -> set[tuple[str, ...]]:
        """Return the paths of all that a whole state holds."""

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
            CheckpointError: it is missing, damaged or foreign, or has no such component, or lacks parts of it.
        """
        state, _ = load_checkpoint(Path(path), component=component)
        names = tuple(component.split("/") if component else ())
        for name in reversed(names):
            state = {name: state}
        wanted = [part for part in self.part_names() if part[: len(names)] == names]
        if missing := sorted({_first_lack(state, part) for part in wanted} - {""}):
            got = f"no {', '.join(missing[:_MAX_NAMED])}{' and more' if len(missing) > _MAX_NAMED else ''}"
            fix = "restore a checkpoint of these modules, or name the component to restore"
            raise CheckpointError(explain(str(path), got=got, allowed="every part of the state", fix=fix))
        self.set_state(state)
