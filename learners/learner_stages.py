"""LearnerStages: how a learner is built, and the stages of a gradient step that a user may override."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import nn

from dask_rl.storage.errors import ConfigError, explain

from .algorithm import Phase, select_parameters
from .algorithms.registry import build_algorithm
from .batch import Batch, ModuleID, MultiBatch
from .flat import FlatParameters, FlatTargets, SegmentKey
from .gradients import Losses, PhaseGradients
from .learner_rank import LearnerRank
from .module import MultiRLModule, RLModule, check_module_ids
from .noise import NoiseBuffers
from .optimizers import Registration, SegmentOptimizer, clip_gradients, gradient_norms
from .schedules import Schedule, as_schedule
from .seeding import own_random_numbers
from .undo import Undo


class LearnerStages(LearnerRank):
    """Building, and one step's losses, gradients, clipping and optimizers."""

    # -- building ------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Build modules with seeded weights, optimizers, flat storage; equal on all learners of a group."""
        should = self.modules_to_update
        spec = self.module_spec
        check_module_ids("modules_to_update", () if should is None or callable(should) else should, spec)
        check_module_ids("module_algorithms", self.config.module_algorithms, spec)
        self.module = MultiRLModule({id_: self._build_module(id_) for id_ in sorted(self.module_spec.modules)})
        for module_id in self.module:
            self.configure_optimizers_for_module(module_id)
        self._build_storage()

    def _build_module(self, module_id: ModuleID) -> RLModule:
        """Build one module and its algorithm; its weights depend on the seed and its id alone."""
        algorithm = self.algorithms[module_id] = build_algorithm(self.config.algorithm_of(module_id))
        seed = np.random.SeedSequence([self.config.seed, crc32(module_id.encode())])
        with own_random_numbers():
            torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
            module = algorithm.build_module(self.module_spec.modules[module_id])
        return module.to(self.device, self.dtype)

    def configure_optimizers_for_module(self, module_id: ModuleID) -> None:
        """Register the optimizers of a module; by default those that its algorithm declares."""
        module = self.module[module_id]
        for name, spec in sorted(self.algorithms[module_id].optimizers(self.config.num_steps).items()):
            parameters = select_parameters(module, spec.prefixes)
            self.register_optimizer(module_id, name, spec.factory, parameters, spec.learning_rate, **spec.kwargs)

    def register_optimizer(
        self,
        module_id: ModuleID,
        name: str,
        optimizer: Any,
        parameters: Sequence[tuple[str, nn.Parameter]],
        learning_rate: float | Sequence[tuple[int, float]] | Schedule,
        **kwargs: Any,
    ) -> None:
        """Give `parameters` (name, parameter) of a module to an optimizer class or factory.

        Args:
            module_id: the module.
            name: the optimizer's name, unique in the module.
            optimizer: called with (parameters, lr=…, **kwargs).
            parameters: each belongs to one optimizer only.
            learning_rate: a number, (step, value) points, or a function of the step, such as a TorchSchedule.
            kwargs: passed on to the optimizer.
        """
        if not parameters:
            raise ConfigError(
                explain(
                    f"optimizer {name!r} of module {module_id!r}",
                    got="no parameter",
                    fix="check its prefixes",
                )
            )
        schedule = as_schedule(learning_rate)
        self._registrations[module_id, name] = Registration(parameters, optimizer, schedule, kwargs)

    def _build_storage(self) -> None:
        """Lay out parameters, gradients and targets; may be done again, values stay and optimizers begin anew."""
        for made in (self._noise, self._gradients, self._targets, self._undo, self._undo_buffers, self._layouts):
            made.clear()
        groups = {key: registration.parameters for key, registration in sorted(self._registrations.items())}
        self.flat = FlatParameters(groups, list(self.module), dtype=self.dtype, device=self.device)
        self.optimizers = {
            key: SegmentOptimizer(self.flat, key, registration) for key, registration in self._registrations.items()
        }
        for module_id in self.module:
            algorithm, module = self.algorithms[module_id], self.module[module_id]
            shapes = algorithm.noise_shapes(module)
            self._noise[module_id] = NoiseBuffers(
                shapes, self.config.seed, self.dtype, self.device, module_id=module_id
            )
            for phase in algorithm.phases():
                self._build_phase(module_id, module, phase)
            self._undo[module_id] = self._build_undo(module_id)
            self._undo_buffers[module_id] = Undo(module)
        self._flat_modules = set(self.module) - {key[0] for key, o in self.optimizers.items() if not o.is_flat}
        self.lifetime = self.lifetime.for_modules(list(self.module), self.device)

    def _build_undo(self, module_id: ModuleID) -> Undo:
        keys = [key for key in sorted(self.optimizers) if key[0] == module_id]
        tensors = [self.flat.data[start:stop] for start, stop in self.flat.ranges(keys)]
        tensors += [targets.data for key, targets in sorted(self._targets.items()) if key[0] == module_id]
        return Undo(self.module[module_id], tensors, [self.optimizers[key] for key in keys])

    def _build_phase(self, module_id: ModuleID, module: nn.Module, phase: Phase) -> None:
        def losses(batch: Batch, noise: Mapping[str, torch.Tensor]) -> Losses:
            return self.compute_losses(module_id, batch, noise, phase)

        self._gradients[module_id, phase.name] = PhaseGradients(
            module,
            self.flat,
            [(module_id, name) for name in phase.optimizers],
            losses,
            compile_=self.config.learners.compile == "on",
            bf16=self.config.learners.precision == "bf16",
        )
        for update in phase.targets:
            target = _under(module, update.target)
            self._targets[module_id, update.target] = FlatTargets(target, _under(module, update.source))

    # -- the stages of a step ------------------------------------------------------------------------------------

    def compute_losses(
        self, module_id: ModuleID, batch: Batch, noise: Mapping[str, torch.Tensor], phase: Phase
    ) -> Losses:
        """Return one module's losses of a phase by name, summed over the rows that count.

        It may write to buffers of the module, such as moving norms; a step that is skipped, or fails and is taken
        again, does not count in them. They are those of this learner's own rows, and so differ between learners,
        unless what is written is summed over them first: `self.collective.all_reduce_`, with `compile` off. A
        learner that replaces a lost one takes over the buffers of another one.
        """
        return self.algorithms[module_id].losses(self.module[module_id], batch, noise, phase)

    def compute_gradients(
        self, phases: Mapping[ModuleID, Phase], batches: MultiBatch, noise: Mapping[ModuleID, Any]
    ) -> dict[ModuleID, Losses]:
        """Put the gradients of the phase's summed losses into flat storage; return the losses."""
        return {
            module_id: self._gradients[module_id, phase.name](batches[module_id], noise[module_id])
            for module_id, phase in phases.items()
        }

    def postprocess_gradients(self, keys: Sequence[SegmentKey]) -> torch.Tensor:
        """Turn sums into means, clip; return the norms before clipping, (len(keys),)."""
        ids = list(self.module)
        for key in keys:
            self.flat.segment_grad(key).div_(self._total_weights[ids.index(key[0])])
        norms = gradient_norms(self.flat, keys)
        for key in keys:
            settings = self.algorithms[key[0]].config
            if settings.grad_clip is not None:
                clip_gradients(self.flat, key, settings.grad_clip, settings.grad_clip_by)
        return norms

    def apply_gradients(self, keys: Sequence[SegmentKey]) -> None:
        """Step the optimizers of the segments."""
        for key in keys:
            self.optimizers[key].set_rate(self.step)  # a schedule that fails leaves all of them as they are
        for key in keys:
            self.optimizers[key].optimizer.step()

    def _changes_at_once(self, module_ids: Iterable[ModuleID]) -> bool:
        """Tell whether a phase changes weights and optimizer state wholly or not at all: the stages built in do."""
        own = (
            (self.compute_gradients, LearnerStages.compute_gradients),
            (self.postprocess_gradients, LearnerStages.postprocess_gradients),
            (self.apply_gradients, LearnerStages.apply_gradients),
        )
        if any(getattr(stage, "__func__", None) is not built_in for stage, built_in in own):
            return False
        return self._flat_modules.issuperset(module_ids)

    def before_gradient_based_update(self, timesteps: Mapping[str, Any], **kwargs: Any) -> None:
        """Called before the steps of an update call, once, also where the call goes on after a failure."""

    def after_gradient_based_update(self, timesteps: Mapping[str, Any], **kwargs: Any) -> None:
        """Called after the steps of an update call; by learners that lived to see its end in this group."""


def _under(module: nn.Module, prefix: str) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters under a prefix, named without it."""
    return [(name.removeprefix(prefix), p) for name, p in module.named_parameters() if name.startswith(prefix)]
