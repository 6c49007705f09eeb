"""GroupModules: modules that come to a learner group, leave it, or are loaded into it."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dask_rl.storage.errors import ConfigError, WaitTimeoutError, explain

from .agreement import ShouldBeUpdated
from .algorithm import AlgorithmConfig
from .algorithms.registry import parse_algorithm, register_algorithm
from .batch import ModuleID
from .calls import pack
from .checkpointable import to_arrays
from .config import LearnerGroupConfig
from .group_updates import GroupUpdates
from .learner import Learner
from .manager import values
from .module import MultiRLModuleSpec, RLModuleSpec, check_module_ids, validate_module_id
from .module_checkpoints import load_module, load_modules, save_module
from .published import GroupIdentity


class GroupModules(GroupUpdates):
    """The modules of a group; its config and module_spec follow, so that checkpoints know them."""

    _should_module_be_updated: ShouldBeUpdated
    _learner_class: type[Learner]
    identity: GroupIdentity
    """Under which it is known on its cluster."""
    _module_states: Mapping[ModuleID, Any]
    """Weights of modules that may not have come to all learners yet."""

    def add_module(
        self,
        *,
        module_id: ModuleID,
        module_spec: RLModuleSpec,
        config_overrides: Mapping[str, Any] | AlgorithmConfig | None = None,
        new_should_module_be_updated: ShouldBeUpdated = None,
        module_state: Mapping[str, Any] | None = None,
    ) -> MultiRLModuleSpec:
        """Add a module on all learners, with equal weights; the others keep weights and optimizer state.

        Args:
            module_id: a new id.
            module_spec: its spaces and class.
            config_overrides: settings of its algorithm that differ from the group's; with another `name` a complete
                algorithm of its own.
            new_should_module_be_updated: what updates train from now on; None: as before.
            module_state: its parameters and buffers by name; None: initial ones.

        Returns:
            The specs of all modules.

        Raises:
            ConfigError: the id is taken or cannot name a component, or the settings do not fit.
        """
        validate_module_id(module_id)
        if module_id in self.module_spec.modules:
            taken = sorted(self.module_spec.modules)
            raise ConfigError(explain("module id", got=module_id, allowed=f"none of {taken}", fix="choose another"))
        algorithm = self._algorithm_with(config_overrides)
        config = self.config.model_copy(
            update={"module_algorithms": {**self.config.module_algorithms, module_id: algorithm}}
        )
        spec = MultiRLModuleSpec({**self.module_spec.modules, module_id: module_spec})
        state = None if module_state is None else to_arrays(module_state)
        self._change(config, spec, new_should_module_be_updated, {module_id: state})
        return self.module_spec

    def remove_module(
        self, module_id: ModuleID, *, new_should_module_be_updated: ShouldBeUpdated = None
    ) -> MultiRLModuleSpec:
        """Remove a module on all learners; the others keep weights and optimizer state.

        Raises:
            ConfigError: there is no such module, or it is the only one.
        """
        known = sorted(self.module_spec.modules)
        if module_id not in known or len(known) == 1:
            allowed = f"one of {known}, while another one stays"
            raise ConfigError(explain("module id", got=repr(module_id), allowed=allowed, fix="choose another"))
        spec = MultiRLModuleSpec({k: v for k, v in self.module_spec.modules.items() if k != module_id})
        self._change(self.config.without_module(module_id), spec, new_should_module_be_updated, {})
        return self.module_spec

    def load_module_state(
        self,
        *,
        multi_rl_module_ckpt_dir: str | Path | None = None,
        modules_to_load: Collection[ModuleID] | None = None,
        rl_module_ckpt_dirs: Mapping[ModuleID, str | Path] | None = None,
    ) -> None:
        """Load modules' weights from checkpoints; optimizer state stays.

        Args:
            multi_rl_module_ckpt_dir: a checkpoint of a group.
            modules_to_load: which of its modules; None: all.
            rl_module_ckpt_dirs: checkpoints of single modules by id; these are applied last.

        Raises:
            ConfigError: neither is given, or modules_to_load without the first.
            CheckpointError: a checkpoint is missing, damaged or foreign, or lacks a module.
        """
        if multi_rl_module_ckpt_dir is None and not rl_module_ckpt_dirs:
            allowed = "multi_rl_module_ckpt_dir, rl_module_ckpt_dirs or both"
            raise ConfigError(explain("load_module_state", got="no checkpoint", allowed=allowed, fix="give one"))
        if multi_rl_module_ckpt_dir is None and modules_to_load is not None:
            allowed = "modules_to_load with multi_rl_module_ckpt_dir"
            raise ConfigError(explain("load_module_state", got="it alone", allowed=allowed, fix="give both"))
        weights: dict[ModuleID, Any] = {}
        if multi_rl_module_ckpt_dir is not None:
            weights |= load_modules(multi_rl_module_ckpt_dir, modules_to_load)
        for module_id, path in (rl_module_ckpt_dirs or {}).items():
            weights[module_id] = load_module(path)
        self.set_weights(weights, force=True)

    def save_module(self, module_id: ModuleID, path: str | Path) -> Path:
        """Write one module's weights to a new directory, for `load_module_state(rl_module_ckpt_dirs=…)`."""
        if module_id not in self.module_spec.modules:
            known = sorted(self.module_spec.modules)
            raise ConfigError(explain("module id", got=repr(module_id), allowed=known, fix="use one of these"))
        state = self.get_weights([module_id])[module_id]
        return save_module(path, state, self.module_spec.modules[module_id])

    def _algorithm_with(self, overrides: Mapping[str, Any] | AlgorithmConfig | None) -> AlgorithmConfig:
        if isinstance(overrides, AlgorithmConfig):
            return overrides
        base = self.config.algorithm
        if overrides is None:
            return base
        if overrides.get("name", base.name) != base.name:
            return parse_algorithm(overrides)
        return parse_algorithm({**base.model_dump(), **overrides})

    def _choose_modules(self, should_be_updated: ShouldBeUpdated) -> ShouldBeUpdated:
        """Let the config follow a collection, so that it changes with the modules and is saved; return a function."""
        if should_be_updated is None or callable(should_be_updated):
            return should_be_updated
        self.config = self.config.model_copy(update={"modules_to_update": tuple(sorted(should_be_updated))})
        return None

    def _change(
        self,
        config: LearnerGroupConfig,
        spec: MultiRLModuleSpec,
        should_be_updated: ShouldBeUpdated,
        states: Mapping[ModuleID, Any],
    ) -> None:
        """Bring all learners to other modules.

        Where all learners refuse, nothing changes. Where one of several cannot take a new module, none keeps it;
        where one cannot remove a module that others have removed, it is removed with its learner. A change that is
        interrupted or meets missing workers is completed before anything else is done.
        """
        if should_be_updated is not None and not callable(should_be_updated):
            check_module_ids("modules_to_update", should_be_updated, spec)
        self.dispatcher.drain(self.config.learners.update_timeout_seconds)  # what is open is of the present modules
        before = self.config, self.module_spec, self._should_module_be_updated, self._module_states
        is_removal = len(spec.modules) < len(self.module_spec.modules)
        self.config, self.module_spec, self._module_states = config, spec, states
        if should_be_updated is not None:
            self._should_module_be_updated = self._choose_modules(should_be_updated)
        if self.is_remote:
            try:
                pack(self._blueprint())
            except BaseException:
                self._go_back_to(before)
                raise
        # From now on learners that join are given these modules, whatever they have.
        results = self._try_on_all(_set_modules, blueprint=self._blueprint())
        errors = [result.error for result in results if result.error is not None]
        is_known = not any(isinstance(error, WaitTimeoutError) for error in errors)
        if errors and is_known and (len(errors) == len(results) or not is_removal):
            self._go_back_to(before)
        values(results)
        self._module_states = {}

    def _go_back_to(self, before: tuple[Any, ...]) -> None:
        self.config, self.module_spec, self._should_module_be_updated, self._module_states = before

    def _blueprint(self) -> tuple[Any, ...]:
        """Return the arguments of a LearnerActor."""
        options = {"should_module_be_updated": self._should_module_be_updated}
        classes = self.config.algorithm_classes()
        states, identity = self._module_states, self.identity
        return self.config, self.module_spec, self._learner_class, options, classes, states, identity


def _set_modules(learner: Learner, blueprint: tuple[Any, ...]) -> None:
    """Give a learner these modules; does nothing where it has them."""
    config, spec, _, options, algorithm_classes, states, _ = blueprint
    for algorithm in algorithm_classes:
        register_algorithm(algorithm)
    learner.set_modules(config, spec, states, **options)
