"""LearnerState: what a learner holds, and how that is saved, restored and copied to its peers."""

from collections.abc import Mapping
from typing import Any

import torch

from dask_rl.storage.errors import CheckpointError, explain

from .activity import Activity
from .agreement import ShouldBeUpdated
from .algorithm import Algorithm
from .batch import ModuleID
from .checkpointable import Checkpointable, Components, State, select_state
from .collective import Collective, SingleProcess
from .config import LearnerGroupConfig
from .flat import FlatParameters, FlatTargets, SegmentKey
from .gradients import PhaseGradients
from .iterator import BatchIterator, BatchSource
from .metrics import Lifetime, OpenCall, Result
from .module import MultiRLModule, MultiRLModuleSpec
from .noise import NoiseBuffers
from .optimizers import Registration, SegmentOptimizer
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
        self.iterators: dict[str, BatchIterator] = {}
        self.step = 0
        self.weights_seq_no = 0
        self.num_skipped_steps = 0
        self.iterator_steps: dict[str, int] = {}
        """Steps completed from each iterator; after a failed step it is behind the iterator's own count."""
        self.open_request: int | None = None
        """Number of a request that was begun and not finished."""
        self.open_first_step = 0
        """The step at which it began."""
        self.lifetime = Lifetime([], self.device)
        """Rows and steps that each module has been trained on by all learners together."""
        self.is_warm = False
        """Whether it has made a step since it joined: the first one may compile."""
        self.knows_state = False
        """Whether its tensors are those of its position: not before it has joined, nor after a copy that broke off."""
        self.activity = Activity()
        """What the learner is doing; may be read from another thread."""
        self.stop_requested = False
        """Set from another thread to end the present request before its next step; `join` takes it back."""
        self._sources: dict[str, BatchSource] = {}
        self._saved_iterators: dict[str, dict[str, Any]] = {}
        self._call: OpenCall | None = None
        self._results: dict[int, Result] = {}
        self._taken_over: set[str] = set()
        """Iterators whose position is that of another learner, which may know more of them."""
        self._registrations: dict[SegmentKey, Registration] = {}
        self._gradients: dict[tuple[ModuleID, str], PhaseGradients] = {}
        self._gradient_norms: dict[SegmentKey, torch.Tensor] = {}
        self._targets: dict[tuple[ModuleID, str], FlatTargets] = {}
        self._noise: dict[ModuleID, NoiseBuffers] = {}
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

        Args:
            state: as `get_state` returns it.
            force: whether weights of an older update than the present ones are taken, too.
        """
        counters = dict(state.get("counters", {}))
        if not self.set_weights(state.get("rl_module", {}), counters.get("weights_seq_no"), force=force):
            counters["weights_seq_no"] = self.weights_seq_no
        for module_id, optimizers in sorted(state.get("optimizers", {}).items()):
            for name, values in sorted(optimizers.items()):
                self._optimizer(module_id, name).load_state_dict(values)
        self.lifetime.load_state_dict(state.get("lifetime", {}))
        self.step = int(counters.get("step", self.step))
        self.weights_seq_no = int(counters.get("weights_seq_no", self.weights_seq_no))
        self.num_skipped_steps = int(counters.get("num_skipped_steps", self.num_skipped_steps))
        if counters:  # another history: nothing of this one goes on
            self.open_request = None
            self._results.clear()
            self._call = None
        for key, position in state.get("iterators", {}).items():
            if key in self.iterators:
                self.iterators[key].load_state_dict(dict(position))
            else:
                self._saved_iterators[key] = dict(position)
            self.iterator_steps[key] = int(position["step"])

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
        """
        if weights_seq_no is not None and int(weights_seq_no) < self.weights_seq_no and not force:
            return False
        self.module.set_state(weights)
        return True

    def _iterator_states(self) -> dict[str, dict[str, Any]]:
        """Return those of open iterators, and of those that no update has asked for since they were taken over.

        They are of steps that were completed: an iterator itself may stand behind the batch of a failed one.
        """
        states = self._saved_iterators | {key: iterator.state_dict() for key, iterator in self.iterators.items()}
        return {key: state | {"step": self.iterator_steps.get(key, 0)} for key, state in states.items()}

    def _optimizer(self, module_id: ModuleID, name: str) -> SegmentOptimizer:
        if (module_id, name) not in self.optimizers:
            known = ["/".join(key) for key in sorted(self.optimizers)]
            raise CheckpointError(
                explain(
                    "optimizer state",
                    got=f"{module_id}/{name}",
                    allowed=known,
                    fix="load a state of these modules",
                )
            )
        return self.optimizers[module_id, name]

    def get_metadata(self) -> dict[str, Any]:
        """Return the registered name and the constructor's arguments."""
        constructor = {
            "config": self.config.model_dump(mode="json"),
            "module_spec": self.module_spec.to_json(),
        }
        return {"class_name": "Learner", "constructor": constructor}

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
