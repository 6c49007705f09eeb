"""What a checkpoint says that its modules are, checked before anything of their size is built.

A checkpoint may come from a stranger: names are looked up among the registered ones and never imported, and networks
have the sizes of the weights beside them, or are not built.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dask_rl.storage.errors import CheckpointError, ConfigError, DatasetError, explain

from .algorithm import AlgorithmConfig
from .algorithms.registry import build_algorithm
from .module import RLModule, RLModuleSpec

_OURS = __name__.partition(".")[0] + "."
_MAX_SHOWN = 300  # characters of a problem: a stranger's values may be megabytes long


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Name the checkpoint in what goes wrong inside, whatever its metadata hold.

    Raises:
        CheckpointError: metadata without a part, or with one of another type.
        ConfigError: settings that are wrong, or name what is not registered.
    """
    try:
        yield
    except CheckpointError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{path}: {_short(error)}") from None
    except DatasetError as error:  # a space
        raise CheckpointError(f"{path}: {_short(error)}") from None
    except _BY_FOREIGN_VALUES as error:
        got = f"metadata that describe no module ({type(error).__name__}: {_short(error)})"
        raise CheckpointError(explain(str(path), got=got, fix="use another checkpoint")) from None


_BY_FOREIGN_VALUES = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)


def check_weights(spec: RLModuleSpec, algorithm: AlgorithmConfig, weights: Mapping[str, Any], path: str | Path) -> None:
    """Refuse weights of other shapes than the module that is to be built, or without one that acting needs.

    Raises:
        CheckpointError: they do not fit.
    """
    module = _without_memory(spec, algorithm)
    if module is None:
        return
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    for name in sorted(wanted.keys() | weights.keys()):
        got = tuple(weights[name].shape) if name in weights else None
        if got != wanted.get(name) and (got is not None or name.startswith(module.inference_prefixes)):
            message = explain(
                f"{path}: weights {name[:_MAX_SHOWN]}",
                got="none" if got is None else f"shape {got}",
                allowed=f"shape {wanted[name]}" if name in wanted else "those of its settings",
                fix="use another checkpoint",
            )
            raise CheckpointError(message)


def _without_memory(spec: RLModuleSpec, algorithm: AlgorithmConfig) -> RLModule | None:
    """Return the module with shapes only; None for a class of the user's own that cannot be built so."""
    builder = build_algorithm(algorithm)
    is_ours = spec.module_class is None and type(builder).__module__.startswith(_OURS)
    try:
        with torch.device("meta"):
            return builder.build_module(spec)
    except (NotImplementedError, RuntimeError, TypeError):
        if is_ours:
            raise
        return None


def _short(error: Exception) -> str:
    text = " ".join((str(error).splitlines() or [""])[:1])
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
