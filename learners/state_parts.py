"""StateParts: a learner's saved state, found to fit as a whole before any of it is taken over."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dask_rl.storage.errors import CheckpointError, explain

from .batch import ModuleID
from .flat import SegmentKey
from .module import MultiRLModule
from .optimizers import SegmentOptimizer
from .state_values import as_counts, as_mapping, as_parts

_PARTS = ("rl_module", "optimizers", "counters", "lifetime", "iterators")
_COUNTERS = ("step", "weights_seq_no", "num_skipped_steps")


@dataclass(frozen=True)
class StateParts:
    """What a state holds; a part that it leaves out is empty."""

    weights: Mapping[ModuleID, Mapping[str, Any]]
    optimizers: Mapping[SegmentKey, Mapping[torch.Tensor, dict[str, Any]]]
    """What `SegmentOptimizer.take` wants."""
    counters: Mapping[str, int]
    lifetime: Mapping[ModuleID, Mapping[str, int]]
    iterators: Mapping[str, dict[str, Any]]
    """States by key, each with its "step"."""

    @classmethod
    def of(cls, state: Any, module: MultiRLModule, optimizers: Mapping[SegmentKey, SegmentOptimizer]) -> "StateParts":
        """Check a state, which may be damaged or a stranger's, against the modules that are to take it over.

        Raises:
            CheckpointError: a part is of another kind, or another optimizer's.
            ConfigError: the weights are another module's.
        """
        given = as_parts("state", state, _PARTS)
        parts = {name: as_mapping(name, given.get(name, {})) for name in ("rl_module", "optimizers", "lifetime")}
        weights = {id_: as_mapping(f"rl_module/{id_}", values) for id_, values in parts["rl_module"].items()}
        for module_id, values in sorted(weights.items()):
            module[module_id].check_whole(values)
        prepared = {
            (module_id, name): _find(optimizers, module_id, name).prepare(values)
            for module_id, named in sorted(parts["optimizers"].items())
            for name, values in sorted(as_mapping(f"optimizers/{module_id}", named).items())
        }
        counters = as_counts("counters", given.get("counters", {}), _COUNTERS)
        lifetime = {id_: _lifetime(f"lifetime/{id_}", counts) for id_, counts in parts["lifetime"].items()}
        iterators = as_mapping("iterators", given.get("iterators", {}))
        positions = {key: _position(f"iterators/{key}", position) for key, position in iterators.items()}
        return cls(weights, prepared, counters, lifetime, positions)


def part_names(state: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """Return the paths of what a whole state holds, but for iterators, which come and go."""
    names: set[tuple[str, ...]] = set()
    for part in _PARTS[:-1]:
        for key, inner in state.get(part, {}).items():
            if part in ("rl_module", "counters"):  # whether weights are whole is seen when they are taken over
                names.add((part, key))
            else:
                names |= {(part, key, name) for name, value in inner.items() if not _is_empty(value)}
    return names


def _is_empty(value: Any) -> bool:
    """Tell whether storage keeps nothing of it, as of an optimizer without state."""
    return isinstance(value, Mapping) and all(_is_empty(inner) for inner in value.values())


def _find(optimizers: Mapping[SegmentKey, SegmentOptimizer], module_id: ModuleID, name: str) -> SegmentOptimizer:
    if (module_id, name) not in optimizers:
        known, fix = ["/".join(key) for key in sorted(optimizers)], "load a state of these modules"
        raise CheckpointError(explain("optimizer state", got=f"{module_id}/{name}", allowed=known, fix=fix))
    return optimizers[module_id, name]


def _lifetime(subject: str, value: Any) -> dict[str, int]:
    return _all_of(subject, value, ("num_rows", "num_steps"))


def _position(subject: str, value: Any) -> dict[str, Any]:
    return {**as_mapping(subject, value), **_all_of(subject, value, ("step",))}


def _all_of(subject: str, value: Any, names: tuple[str, ...]) -> dict[str, int]:
    counts = as_counts(subject, value, names)
    if len(counts) < len(names):
        got = sorted(as_mapping(subject, value))
        raise CheckpointError(explain(subject, got=got, allowed=sorted(names), fix="load a checkpoint of this kind"))
    return counts
