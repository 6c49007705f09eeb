"""What batches and episodes hold, compared with the spaces of the module that is to be trained on them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from dask_rl.storage.errors import ConfigError, explain

from .batch import DEFAULT_MODULE_ID, Batch, ModuleID, MultiBatch, as_multi_batch
from .episodes import AnyEpisode, agents_of
from .module import MultiRLModuleSpec, RLModuleSpec

_SEQUENCE_MASK = "sequence_mask"
_NUMBERS = ("rewards", "terminations", "returns_to_go", "discounts", "mask", _SEQUENCE_MASK, "next_valid", "timesteps")
_FLAGS = ("terminations", "mask", _SEQUENCE_MASK, "next_valid")
_FIX = "give it as the spaces in module_spec say"

Layout = tuple[tuple[str, torch.dtype, torch.Size], ...]
"""Name, type and shape without the first axis of each field."""
_Values = torch.Tensor | np.ndarray[Any, Any]


def layout_of(batch: Batch) -> Layout:
    """Return what all batches of one source have in common; taken in every step."""
    return tuple([(name, tensor.dtype, tensor.shape[1:]) for name, tensor in batch.items()])


def check_layout(module_id: ModuleID, batch: Batch, spec: RLModuleSpec) -> None:
    """Raise ConfigError where a field's shape or type is not that of its space; looks at no value."""
    leading = ("B", "L") if _SEQUENCE_MASK in batch else ("B",)
    parts = _parts_of(spec)
    for name, tensor in batch.items():
        if name in parts:
            _check_field(f"{_subject(module_id)}: {name}", tensor, parts[name], leading)
        elif name in _NUMBERS and _kind(tensor) == "c":
            raise _wrong(f"{_subject(module_id)}: {name}", tensor.dtype, "real numbers")


def checked_batch(batch: Mapping[str, Any], spec: MultiRLModuleSpec) -> MultiBatch:
    """Return a batch by module id whose layouts and values fit; of unknown modules the learners tell.

    Raises:
        ConfigError: a shape or type that is not that of its space; flags that are neither 0 nor 1; choices that a
            space does not have.
    """
    given = as_multi_batch(batch)
    for module_id in given.keys() & spec.modules.keys():
        fields, own = given[module_id], spec.modules[module_id]
        check_layout(module_id, fields, own)
        for name in _FLAGS:
            if name in fields:
                _check_flags(f"{_subject(module_id)}: {name}", fields[name])
        for name, space in _parts_of(own).items():
            if name in fields and (bounds := _choices(space)) is not None:
                _check_choices(f"{_subject(module_id)}: {name}", _that_count(name, fields), *bounds)
    return given


def check_episodes(episodes: Iterable[AnyEpisode], spec: MultiRLModuleSpec) -> None:
    """Raise ConfigError where observations or actions of an episode do not fit the module that it trains."""
    parts = {module_id: _parts_of(own) for module_id, own in spec.modules.items()}
    seen: set[Any] = set()
    for episode in episodes:
        for agent in agents_of(episode):
            columns = {"observations": agent.episode.observations, "actions": agent.episode.actions}
            for name, values in _flattened(columns):
                space = parts.get(agent.module_id, {}).get(name)
                if space is None:
                    continue
                subject = f"episodes of module {agent.module_id!r}: {name}"
                layout = agent.module_id, name, values.dtype, values.shape[1:]
                if layout not in seen:
                    _check_field(subject, values, space, ("T",))
                    seen.add(layout)
                if (bounds := _choices(space)) is not None:
                    _check_choices(subject, values, *bounds)


def _subject(module_id: ModuleID) -> str:
    return "batch" if module_id == DEFAULT_MODULE_ID else f"batch of module {module_id!r}"


def _parts_of(spec: RLModuleSpec) -> dict[str, gymnasium.Space[Any]]:
    """Return the plain spaces by the fields that hold their values."""
    parts = dict(_leaves("observations", spec.observation_space))
    following = {f"next_{path}": space for path, space in parts.items()}
    return parts | following | dict(_leaves("actions", spec.action_space))


def _leaves(path: str, space: gymnasium.Space[Any]) -> Iterator[tuple[str, gymnasium.Space[Any]]]:
    match space:
        case spaces.Dict():
            for key, inner in space.spaces.items():
                yield from _leaves(f"{path}/{key}", inner)
        case spaces.Tuple():
            for index, inner in enumerate(space.spaces):
                yield from _leaves(f"{path}/{index}", inner)
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            yield path, space


def _flattened(columns: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, _Values]]:
    for name, values in columns.items():
        if isinstance(values, Mapping):
            yield from _flattened(values, f"{prefix}{name}/")
        elif isinstance(values, tuple):
            yield from _flattened({str(index): inner for index, inner in enumerate(values)}, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", values


def _kind(values: _Values) -> str:
    """Return numpy's letter: c omplex, f loat, b ool or i nteger, of any sign."""
    if isinstance(values, np.ndarray):
        return values.dtype.kind.replace("u", "i")
    if values.dtype.is_complex:
        return "c"
    return "f" if values.dtype.is_floating_point else "b" if values.dtype is torch.bool else "i"


def _check_field(subject: str, values: _Values, space: gymnasium.Space[Any], leading: tuple[str, ...]) -> None:
    shape = tuple(space.shape or ())
    if len(values.shape) != len(leading) + len(shape) or tuple(values.shape[len(leading) :]) != shape:
        allowed = f"({', '.join([*leading, *map(str, shape)])}{',' if len(leading) + len(shape) == 1 else ''})"
        raise _wrong(subject, f"shape {tuple(values.shape)}", allowed)
    kind, is_choice = _kind(values), isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    if kind not in ("i" if is_choice else "fib"):
        raise _wrong(subject, values.dtype, "integers, as they are choices" if is_choice else "real numbers")


def _wrong(subject: str, got: object, allowed: str) -> ConfigError:
    return ConfigError(explain(subject, got=got, allowed=allowed, fix=_FIX))


def _check_flags(subject: str, flags: torch.Tensor) -> None:
    if flags.dtype is not torch.bool and not bool((wrong := (flags != 0) & (flags != 1)).logical_not().all()):
        got = f"the value {flags[wrong][0].item():g}"
        raise ConfigError(explain(subject, got=got, allowed="0 or 1", fix="correct the flags"))


def _choices(space: gymnasium.Space[Any]) -> tuple[Any, Any] | None:
    """Return the first and last choice; None where it is a space of other values."""
    match space:
        case spaces.Discrete():
            return int(space.start), int(space.start + space.n - 1)
        case spaces.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
    return None


def _that_count(name: str, batch: Batch) -> torch.Tensor:
    """Return a field's elements without those that stand for none: padding, and observations that never were."""
    values = batch[name]
    masks = [batch[mask] for mask in (_SEQUENCE_MASK, "next_valid") if mask in batch]
    if not name.startswith("next_"):
        masks = [batch[_SEQUENCE_MASK]] if _SEQUENCE_MASK in batch else []
    counted = [mask.bool() for mask in masks if mask.shape == values.shape[: mask.dim()]]
    return values[torch.stack(counted).all(0)] if counted else values


def _check_choices(subject: str, values: _Values, first: Any, last: Any) -> None:
    choices = values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()
    wrong = (choices < first) | (choices > last)
    if wrong.any():
        got, allowed = f"the choice {choices[wrong][0]}", f"{first} to {last}"
        raise ConfigError(explain(subject, got=got, allowed=allowed, fix=_FIX))
