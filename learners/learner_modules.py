"""LearnerModules: modules that come and go while a learner lives."""

from collections.abc import Callable, Mapping
from typing import Any

from dask_rl.storage.errors import ConfigError, explain

from .agreement import ShouldBeUpdated
from .algorithm import AlgorithmConfig
from .batch import ModuleID
from .config import LearnerGroupConfig
from .learner_steps import LearnerSteps
from .module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec, check_module_ids, validate_module_id


class LearnerModules(LearnerSteps):
    """Adding and removing modules; the others keep weights, targets and optimizer state bit by bit."""

    def add_module(
        self,
        module_id: ModuleID,
        spec: RLModuleSpec,
        algorithm_config: AlgorithmConfig | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a module; its initial weights are equal on all learners.

        Args:
            module_id: its id.
            spec: its spaces (and module class).
            algorithm_config: what it trains with; None: the algorithm of `config`.
            state: weights to begin with, as RLModule.get_state gives them; names that are missing stay initial.

        Raises:
            ConfigError: the id is taken or no id, or the state is another module's. The learner stays as it was.
        """
        validate_module_id(module_id)
        if module_id in self.module:
            raise ConfigError(
                explain("module id", got=f"{module_id!r} again", allowed="a new one", fix="remove the module first")
            )

        def add() -> None:
            if algorithm_config is not None:
                algorithms = {**self.config.module_algorithms, module_id: algorithm_config}
                self.config = self.config.model_copy(update={"module_algorithms": algorithms})
            self.module_spec = MultiRLModuleSpec({**self.module_spec.modules, module_id: spec})
            module = self._build_module(module_id)
            module.set_state(state or {})
            self.module = MultiRLModule(self._modules() | {module_id: module})
            self.configure_optimizers_for_module(module_id)

        self._change(add)

    def remove_module(self, module_id: ModuleID) -> None:
        """Remove a module with its settings and optimizer state.

        Raises:
            ConfigError: there is no such module, or it is the only one.
        """
        left = {id_: module for id_, module in self._modules().items() if module is not self.module[module_id]}
        if not left:
            raise ConfigError(
                explain("module id", got=f"{module_id!r}, the only one", allowed="one of several", fix="keep one")
            )

        def remove() -> None:
            self.config = self.config.without_module(module_id)
            should = self.should_module_be_updated
            if should is not None and not callable(should):
                self.should_module_be_updated = tuple(id_ for id_ in should if id_ != module_id)
            self.module_spec = MultiRLModuleSpec({id_: self.module_spec.modules[id_] for id_ in left})
            self.module = MultiRLModule(left)
            del self.algorithms[module_id]
            for registered in (self._registrations, self._gradient_norms):
                for key in [key for key in registered if key[0] == module_id]:
                    del registered[key]

        self._change(remove)

    def set_modules(
        self,
        config: LearnerGroupConfig,
        spec: MultiRLModuleSpec,
        states: Mapping[ModuleID, Any],
        should_module_be_updated: ShouldBeUpdated = None,
    ) -> None:
        """Add what is missing and remove what is too much; where nothing is, the learner stays as it is.

        Args:
            config: the group's, whose settings it takes over.
            spec: the specs of all modules.
            states: weights of those that come, by module id; those that are missing stay initial.
            should_module_be_updated: see the constructor.
        """
        for module_id in list(self.module):
            if module_id not in spec.modules:
                self.remove_module(module_id)
        for module_id in sorted(spec.modules):
            if module_id not in self.module:
                algorithm, state = config.algorithm_of(module_id), states.get(module_id)
                self.add_module(module_id, spec.modules[module_id], algorithm, state)
        self.config, self.module_spec = config, spec
        self.should_module_be_updated = should_module_be_updated

    def set_modules_to_update(self, should_module_be_updated: ShouldBeUpdated) -> None:
        """Change which modules updates train; the config follows where that is a collection."""
        should = should_module_be_updated
        self.should_module_be_updated = should if callable(should) else None
        if not callable(should):
            check_module_ids("modules_to_update", should or (), self.module_spec)
            ids = None if should is None else tuple(sorted(should))
            self.config = self.config.model_copy(update={"modules_to_update": ids})

    def _modules(self) -> dict[ModuleID, RLModule]:
        return {module_id: self.module[module_id] for module_id in self.module}

    def _change(self, change: Callable[[], None]) -> None:
        """Change modules and lay them out anew; where that fails everything is as before."""
        states = {key: optimizer.state_dict() for key, optimizer in self.optimizers.items()}
        before = self.config, self.module_spec, self.module, self.should_module_be_updated
        algorithms, registrations, norms = dict(self.algorithms), dict(self._registrations), dict(self._gradient_norms)
        try:
            change()
            self._lay_out_again(states)
        except BaseException:
            self.config, self.module_spec, self.module, self.should_module_be_updated = before
            self.algorithms, self._registrations, self._gradient_norms = algorithms, registrations, norms
            self._lay_out_again(states)
            raise

    def _lay_out_again(self, states: Mapping[tuple[ModuleID, str], Mapping[str, Any]]) -> None:
        self._build_storage()
        for key, optimizer in self.optimizers.items():
            optimizer.load_state_dict(states.get(key, {}))
        # The next step compiles again, and may take as long as the first.
        self.is_warm = False
        self.collective.set_timeout(self.config.learners.startup_timeout_seconds)
