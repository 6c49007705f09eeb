"""LearnerState: what a learner holds, and how that is saved, restored and copied to its peers."""

from collections.abc import Mapping
from typing import Any

import torch

from dask_rl.storage.errors import CheckpointError, DaskRLError, explain

from .activity import Activity
from .agreement import ShouldBeUpdated
from .algorithm import Algorithm
from .batch import ModuleID
from .checkpointable import Checkpointable, Components, State, describe, select_state
from .collective import Collective, SingleProcess
from .config import LearnerGroupConfig
from .flat import FlatParameters, FlatTargets, SegmentKey
from .gradients import PhaseGradients
from .iterator import BatchIterator, BatchSource
from .layout_checks import Layout
from .metrics import Lifetime, OpenCall, Result
from .module import MultiRLModule, MultiRLModuleSpec
from .noise import NoiseBuffers
from .optimizers import Registration, SegmentOptimizer
from .state_parts import StateParts, part_names
from .undo import Undo

_DTYPES = {"fp32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}


class LearnerState(Checkpointable):
    """Modules, optimizers and counters of one rank: everything that makes its next step."""

    module: MultiRLModule
    flat: FlatParameters
    optimizers: dict[SegmentKey, SegmentOptimizer]

    def __init__(
        self,
        config: LearnerGroupConfig,
        module_spec: MultiRLModuleSpec,
        *,
        collective: Collective | None = None,
        device: torch.device | None = None,
        should_module_be_updated: ShouldBeUpdated = None,
    ) -> None:
        """Take what makes a learner.

        Args:
            config: the algorithms, the seed, the settings of learners.
            module_spec: the spaces (and module class) of each module.
            collective: the group; None: alone.
            device: where the modules live; None: the CPU.
            should_module_be_updated: which modules updates train; None: those of `config.modules_to_update`. A
                function is asked in every step, of each module with its id and the step's batches; a module is
                updated where it says yes on every learner.
        """
        self.config = config
        self.module_spec = module_spec
        self.collective: Collective = collective or SingleProcess()
        self.device = device or torch.device("cpu")
        self.dtype = _DTYPES[config.learners.precision]
        self.should_module_be_updated = should_module_be_updated
        self.algorithms: dict[ModuleID, Algorithm[Any]] = {}
        self.is_warm = False
        """Whether it has made a step since it joined: the first one may compile."""
        self.knows_state = False
        """Whether its tensors are those of its position: not before it has joined, nor after a copy that broke off."""
        self.activity = Activity()
        """What the learner is doing; may be read from another thread."""
        self.stop_requested = False
        """Set from another thread to end the present request before its next step; `join` takes it back."""
        self._begin_at_zero()
        self._have_nothing_built()

    def _begin_at_zero(self) -> None:
        self.step = 0
        self.weights_seq_no = 0
        self.num_skipped_steps = 0
        self.iterators: dict[str, BatchIterator] = {}
        self.iterator_steps: dict[str, int] = {}
        """Steps completed from each iterator; after a failed step it is behind the iterator's own count."""
        self.open_request: int | None = None
        """Number of a request that was begun and not finished."""
        self.open_first_step = 0
        """The step at which it began."""
        self.lifetime = Lifetime([], self.device)
        """Rows and steps that each module has been trained on by all learners together."""
        self._sources: dict[str, BatchSource] = {}
        """Those of open iterators, and of those that could not be opened anew."""
        self._saved_iterators: dict[str, dict[str, Any]] = {}
        self._call: OpenCall | None = None
        self._results: dict[int, Result] = {}
        self._taken_over: set[str] = set()
        """Iterators whose position is that of another learner, which may know more of them."""

    def _have_nothing_built(self) -> None:
        self._registrations: dict[SegmentKey, Registration] = {}
        self._gradients: dict[tuple[ModuleID, str], PhaseGradients] = {}
        self._gradient_norms: dict[SegmentKey, torch.Tensor] = {}
        self._targets: dict[tuple[ModuleID, str], FlatTargets] = {}
        self._noise: dict[ModuleID, NoiseBuffers] = {}
        self._layouts: dict[ModuleID, Layout] = {}
        """Of the last batches, which were found to fit."""
        self._undo: dict[ModuleID, Undo] = {}
        self._undo_buffers: dict[ModuleID, Undo] = {}
        """Of losses that write to buffers; all else that a step of one phase changes comes after its exchange."""
        self._flat_modules: set[ModuleID] = set()
        """Modules of which no optimizer may fail half-way."""
        self._total_weights = torch.zeros(0)

    @property
    def modules_to_update(self) -> ShouldBeUpdated:
        """Which modules updates train, by `should_module_be_updated` or else by the config."""
        should = self.should_module_be_updated
        return self.config.modules_to_update if should is None else should

    def get_state(self, components: Components = None, *, not_components: Components = None) -> State:
        """Return copies of weights, optimizer state, counters and iterator positions.

        Components: `rl_module/ID`, `optimizers/ID/NAME`, `counters`, `lifetime/ID`, `iterators`.
        """
        optimizers: State = {module_id: {} for module_id in self.module}
        for (module_id, name), optimizer in self.optimizers.items():
            optimizers[module_id][name] = optimizer.state_dict()
        state: State = {
            "rl_module": self.module.get_state(),
            "optimizers": optimizers,
            "counters": {
                "step": self.step,
                "weights_seq_no": self.weights_seq_no,
                "num_skipped_steps": self.num_skipped_steps,
            },
            "lifetime": self.lifetime.state_dict(),
            "iterators": self._iterator_states(),
        }
        return select_state(state, components, not_components)

    def set_state(self, state: Mapping[str, Any], *, force: bool = True) -> None:
        """Take over the parts that `state` holds, in place; flat storage stays where it is.

        One that does not fit, as a whole, changes nothing.

        Args:
            state: as `get_state` returns it.
            force: whether a state with the number of an older update than the present one is taken, too; else it is
                left as a whole: older counters and moments do not belong to newer weights.

        Raises:
            CheckpointError: a part is missing, of another kind, or another optimizer's.
            ConfigError: the weights are another module's, or the data are others.
        """
        parts = StateParts.of(state, self.module, self.optimizers)
        number = parts.counters.get("weights_seq_no")
        if number is not None and number < self.weights_seq_no and not force:
            return
        for key in sorted(parts.iterators.keys() & self.iterators.keys()):
            # It may refuse. One before it that has not is sought back by the next request: `iterator_steps` counts.
            self._load_iterator(self.iterators[key], key, parts.iterators[key])
        self.module.set_state(parts.weights)
        for segment, prepared in parts.optimizers.items():
            self.optimizers[segment].take(prepared)
        self.lifetime.load_state_dict(parts.lifetime)
        self._set_counters(parts.counters)
        for key, position in parts.iterators.items():
            if key not in self.iterators:
                self._saved_iterators[key] = position
                self._sources.pop(key, None)
            self.iterator_steps[key] = position["step"]

    def _set_counters(self, counters: Mapping[str, int]) -> None:
        if counters:  # another history: nothing of this one goes on
            self.open_request = None
            self._results.clear()
            self._call = None
        for name, value in counters.items():
            setattr(self, name, value)

    def _load_iterator(self, iterator: BatchIterator, key: str, state: Mapping[str, Any]) -> None:
        try:
            iterator.load_state_dict(dict(state))
        except DaskRLError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            fix = "load a checkpoint of a run on these data"
            raise CheckpointError(
                explain(f"iterators/{key}", got=f"{type(error).__name__}: {error}", fix=fix)
            ) from error

    def set_weights(
        self,
        weights: Mapping[ModuleID, Mapping[str, Any]],
        weights_seq_no: int | None = None,
        *,
        force: bool = False,
    ) -> bool:
        """Set the weights of the modules in `weights`, unless they are older than the present ones.

        Args:
            weights: parameters and buffers by module id and name.
            weights_seq_no: number of the update that made them; None: they are taken in any case.
            force: whether older ones are taken, too.

        Returns:
            Whether they were taken.

        Raises:
            ConfigError: some of a module's are missing or not finite; those for inference are enough.
        """
        if weights_seq_no is not None and int(weights_seq_no) < self.weights_seq_no and not force:
            return False
        for module_id, values in weights.items():
            self.module[module_id].check_whole(values)
            self.module[module_id].check_finite(values)
        self.module.set_state(weights)
        return True

    def part_names(self) -> set[tuple[str, ...]]:
        """Return the paths of all that a whole state holds."""
        return part_names(self.get_state(not_components="iterators"))

    def _iterator_states(self) -> dict[str, dict[str, Any]]:
        """Return those of open iterators, and of those that no update has asked for since they were taken over.

        They are of steps that were completed: an iterator itself may stand behind the batch of a failed one.
        """
        states = self._saved_iterators | {key: iterator.state_dict() for key, iterator in self.iterators.items()}
        return {key: state | {"step": self.iterator_steps.get(key, 0)} for key, state in states.items()}

    def get_metadata(self) -> dict[str, Any]:
        """Return the registered name and the constructor's arguments."""
        return describe("Learner", self.config, self.module_spec)

    def _shared_tensors(self) -> list[torch.Tensor]:
        tensors = [self.flat.data, *(self._targets[key].data for key in sorted(self._targets))]
        flat = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        for key in sorted(self.optimizers):
            tensors += self.optimizers[key].tensors()
        for module_id in self.module:
            module = self.module[module_id]
            # No step changes a frozen parameter, but somebody may have set it.
            tensors += [p.data for p in module.parameters() if p.untyped_storage().data_ptr() not in flat]
            tensors += module.buffers()
        return tensors

    def close(self) -> None:
        """Close the iterators and leave the group."""
        for iterator in self.iterators.values():
            iterator.close()
        self.iterators.clear()
        self._sources.clear()
        self.collective.close()
