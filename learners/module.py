"""RLModule: the networks of one policy; MultiRLModule: several by module id; and their specs."""

import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
import torch
from torch import nn

from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.spaces import space_from_json, space_to_json

from .batch import DEFAULT_MODULE_ID, ModuleID, Observations
from .state_values import as_tensor

_FILE_ENDINGS = (".json", ".safetensors")
"""Of a checkpoint's files: a component of such a name would be taken for one."""
_MODULE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
MAX_MODULE_ID = 128
"""Letters: names of a checkpoint's files hold the id and more, and file systems allow 255 bytes."""
_RESERVED = "all_modules"


class RLModule(nn.Module):
    """The networks of one policy and its critics.

    A subclass builds its networks in `__init__(observation_space, action_space, config)`, `config` being the
    algorithm's. Every trainable scalar (a temperature, a dual variable) is a parameter of the module: what is
    outside is neither synchronised nor saved.
    """

    inference_prefixes: ClassVar[tuple[str, ...]] = ("policy.",)
    """Names of the parameters that acting needs begin with one of these."""

    def __init__(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], config: Any
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space

    def forward_inference(self, observations: Observations) -> torch.Tensor:
        """Return greedy actions in the action space, (B, *act); by default those of `self.policy`."""
        policy: Any = self.policy
        actions: torch.Tensor = policy.mode(observations)
        return actions.reshape(len(actions), *(self.action_space.shape or ()))

    def get_state(self, *, inference_only: bool = False) -> dict[str, torch.Tensor]:
        """Return copies of parameters and buffers by name, on the CPU: whoever reads them may have no GPU."""
        return {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in self.state_dict().items()
            if not inference_only or name.startswith(self.inference_prefixes)
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Copy values into parameters and buffers in place; where one is unknown or misshapen none is copied.

        Raises:
            ConfigError: see `check_state`.
        """
        self.check_state(state)
        own = self.state_dict()
        with torch.no_grad():
            for name, value in state.items():
                own[name].copy_(torch.as_tensor(value))

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError where a state has names that are unknown here, or other shapes.

        Raises:
            CheckpointError: a value is no number.
        """
        own = self.state_dict()
        unknown = sorted(set(state) - set(own))
        if unknown:
            got = f"unknown names {unknown}"
            raise ConfigError(explain("module state", got=got, allowed=sorted(own), fix="use its own state"))
        for name, value in state.items():
            shape, wanted = tuple(as_tensor(f"module state {name}", value).shape), tuple(own[name].shape)
            if shape != wanted:
                fix = "use a state of a module with the same spaces and sizes"
                raise ConfigError(explain(f"module state {name}", got=f"shape {shape}", allowed=wanted, fix=fix))

    def check_whole(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError where a state does not fit, or lacks a name, of all or of those for inference.

        Raises:
            CheckpointError: a value is no number.
        """
        self.check_state(state)
        own = self.state_dict()
        acting = {name for name in own if name.startswith(self.inference_prefixes)}
        if missing := sorted((acting if acting and state.keys() <= acting else own.keys()) - state.keys()):
            fix = "use a state of a module with the same spaces and sizes"
            raise ConfigError(explain("module state", got=f"no {', '.join(missing)}", allowed=sorted(own), fix=fix))

    def check_finite(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError where a parameter is not finite."""
        for name, _ in self.named_parameters():
            if name in state and not bool(torch.isfinite(torch.as_tensor(state[name])).all()):
                subject, fix = f"module state {name}", "use weights of a module that has not diverged"
                raise ConfigError(explain(subject, got="values that are not finite", allowed="finite ones", fix=fix))


_MODULE_CLASSES: dict[str, type[RLModule]] = {}


def register_module(cls: type[RLModule]) -> type[RLModule]:
    """Make a module class known by its name, so that checkpoints can name it; usable as a decorator."""
    _MODULE_CLASSES[cls.__name__] = cls
    return cls


@dataclass(frozen=True)
class RLModuleSpec:
    """What a module is built from, beside the algorithm's configuration."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    module_class: type[RLModule] | None = None
    """None: the algorithm's own class for these spaces."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; a module class is named, and must be registered to be read back."""
        return {
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "module_class": None if self.module_class is None else self.module_class.__name__,
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "RLModuleSpec":
        """Read back `to_json`; an unregistered class raises ConfigError."""
        name = obj["module_class"]
        if name is not None and name not in _MODULE_CLASSES:
            raise ConfigError(
                explain(
                    "module class",
                    got=repr(name),
                    allowed=f"the algorithm's own or a registered one of {sorted(_MODULE_CLASSES)}",
                    fix="decorate your class with @dask_rl.register_module before loading",
                )
            )
        spaces = (space_from_json(obj["observation_space"]), space_from_json(obj["action_space"]))
        return cls(*spaces, module_class=None if name is None else _MODULE_CLASSES[name])


@dataclass(frozen=True)
class MultiRLModuleSpec:
    """Specs by module id."""

    modules: Mapping[ModuleID, RLModuleSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the ids."""
        for module_id in self.modules:
            validate_module_id(module_id)

    @classmethod
    def of(cls, spec: "RLModuleSpec | MultiRLModuleSpec") -> "MultiRLModuleSpec":
        """Wrap a single spec as that of the default module."""
        return spec if isinstance(spec, MultiRLModuleSpec) else cls({DEFAULT_MODULE_ID: spec})

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {module_id: self.modules[module_id].to_json() for module_id in sorted(self.modules)}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "MultiRLModuleSpec":
        """Read back `to_json`."""
        return cls({module_id: RLModuleSpec.from_json(spec) for module_id, spec in obj.items()})


def validate_module_id(module_id: ModuleID) -> None:
    """Raise ConfigError unless the id can name a checkpoint component."""
    if module_id == _RESERVED:
        allowed = f"any other than {_RESERVED}, the name of the metrics of all modules together"
        raise ConfigError(explain("module id", got=repr(module_id), allowed=allowed, fix="rename the module"))
    is_name = isinstance(module_id, str) and _MODULE_ID.fullmatch(module_id) and ".." not in module_id
    if not is_name or len(module_id) > MAX_MODULE_ID or module_id.lower().endswith(_FILE_ENDINGS):
        got = reprlib.repr(module_id)
        allowed = f"up to {MAX_MODULE_ID} letters, digits, _ . -, no ending {' or '.join(_FILE_ENDINGS)}"
        raise ConfigError(explain("module id", got=got, allowed=allowed, fix="rename the module"))


def check_module_ids(name: str, module_ids: Iterable[ModuleID], spec: MultiRLModuleSpec) -> None:
    """Raise ConfigError where one of `module_ids`, given as `name`, is not in the spec."""
    known = sorted(spec.modules)
    unknown = sorted(set(module_ids) - set(known))
    if unknown:
        fix = "use ids of module_spec"
        raise ConfigError(explain(name, got=f"unknown modules {unknown}", allowed=known, fix=fix))


class MultiRLModule(nn.Module):
    """RLModules by id, in sorted order."""

    def __init__(self, modules: Mapping[ModuleID, RLModule]) -> None:
        super().__init__()
        for module_id in modules:
            validate_module_id(module_id)
        # nn.ModuleDict forbids dots in names, ids may have them.
        self._ids = sorted(modules)
        self._modules_in_order = nn.ModuleList(modules[module_id] for module_id in self._ids)

    def __getitem__(self, module_id: ModuleID) -> RLModule:
        """Return one module; an unknown id raises ConfigError."""
        if module_id not in self._ids:
            raise ConfigError(explain("module id", got=repr(module_id), allowed=self._ids, fix="use one of these"))
        module = self._modules_in_order[self._ids.index(module_id)]
        return module  # type: ignore[return-value]

    def __contains__(self, module_id: object) -> bool:
        """Tell whether there is a module of this id."""
        return module_id in self._ids

    def __iter__(self) -> Iterator[ModuleID]:
        """Iterate over the ids in sorted order."""
        return iter(self._ids)

    def get_state(
        self, module_ids: Collection[ModuleID] | None = None, *, inference_only: bool = False
    ) -> dict[ModuleID, dict[str, torch.Tensor]]:
        """Return copies of the modules' states by id."""
        ids = self._ids if module_ids is None else sorted(module_ids)
        return {module_id: self[module_id].get_state(inference_only=inference_only) for module_id in ids}

    def set_state(self, state: Mapping[ModuleID, Mapping[str, Any]]) -> None:
        """Set the states of the modules named in `state`; where one does not fit none is set."""
        for module_id, values in state.items():
            self[module_id].check_state(values)
        for module_id in sorted(state):
            self[module_id].set_state(state[module_id])
