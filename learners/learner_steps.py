"""LearnerSteps: one gradient step, phase by phase, all or nothing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from dask_rl.storage.errors import LearnerStoppedError, NonFiniteGradientError, explain

from .activity import COMPUTING, IN_COLLECTIVE
from .agreement import agree_on_step
from .algorithm import Phase
from .batch import Batch, ModuleID, MultiBatch, check_batch, num_rows
from .flat import SegmentKey
from .gradients import Losses
from .layout_checks import check_layout, layout_of
from .learner_stages import LearnerStages
from .losses import num_valid_rows
from .metrics import CallMetrics
from .undo import Undo


class LearnerSteps(LearnerStages):
    """Steps that all learners of a group take together."""

    def _choose(self, batches: MultiBatch, metrics: CallMetrics, *, is_aligned: bool) -> MultiBatch:
        """Return the batches of the modules that all learners update in this step."""
        should = self.modules_to_update
        if is_aligned and not callable(should):
            return self._selected(batches)
        self.activity.enter(IN_COLLECTIVE)
        agreed = agree_on_step(
            self.collective,
            batches,
            wants=lambda id_: bool(should(id_, batches)) if callable(should) else should is None or id_ in should,
            module_ids=list(self.module),
            device=self.device,
        )
        metrics.num_skipped_module_steps += agreed.num_left_out
        return {module_id: batches[module_id] for module_id in agreed.module_ids}

    def _selected(self, batches: MultiBatch) -> MultiBatch:
        """Leave out the modules that are not to be updated, where that does not depend on their data."""
        should = self.modules_to_update
        if should is None or callable(should):
            return batches
        return {module_id: batch for module_id, batch in batches.items() if module_id in should}

    def _step(self, batches: MultiBatch, shards: Sequence[int], metrics: CallMetrics) -> None:
        """One gradient step of every module in `batches`; it counts as one where there is none, too."""
        self._check_stop()  # behind a wait for data, which may have been long
        self.activity.enter(COMPUTING)
        with metrics.timed("computing"):
            applied = bool(batches) and self._try_step(batches, shards, metrics)
        self.step += 1
        self.activity.count_step(sum(map(num_rows, batches.values())))
        metrics.num_steps += 1
        if not applied:
            self.num_skipped_steps += 1
            metrics.num_skipped_steps += 1

    def _check_stop(self) -> None:
        if self.stop_requested:
            fix = "let the learner join a group again to go on"
            raise LearnerStoppedError(explain(f"learner at step {self.step}", got="a request to stop", fix=fix))

    def _try_step(self, batches: MultiBatch, shards: Sequence[int], metrics: CallMetrics) -> bool:
        """Run the phases; return whether all of them could be applied, else nothing has changed."""
        noise = {module_id: self._draw(module_id, batch, shards) for module_id, batch in batches.items()}
        rows = {module_id: num_valid_rows(batch) for module_id, batch in batches.items()}
        for index, module_id in enumerate(self.module):
            self.flat.weights[index] = rows.get(module_id, 0)
        plans = {module_id: self.algorithms[module_id].phases() for module_id in batches}
        num_phases = max(map(len, plans.values()))
        undo = self._undo_for(batches, num_phases)
        for part in undo:
            part.remember()
        losses: list[dict[ModuleID, Losses]] = []
        applied = False
        try:
            applied = all(
                self._phase(
                    index,
                    {module_id: plan[index] for module_id, plan in plans.items() if index < len(plan)},
                    batches,
                    noise,
                    metrics,
                    losses,
                )
                for index in range(num_phases)
            )
        finally:
            if not applied:
                for part in undo:
                    part.put_back()
        self._end_start_up()
        # Only now: the losses of a step that fails and is taken again count once.
        for phase_losses in losses:
            for module_id, named in phase_losses.items():
                metrics.add_losses(module_id, named)
        for module_id in batches:
            metrics.add_rows(module_id, rows[module_id], num_rows(batches[module_id]))
        if applied:
            self.lifetime.add_step(batches, self._total_weights)
        return applied

    def _undo_for(self, module_ids: Iterable[ModuleID], num_phases: int) -> list[Undo]:
        """Return what must be remembered of the modules, so that a step can be taken back.

        Before the only exchange of a single phase nothing but buffers changes, in the losses, and after it nothing
        fails: unless a stage or an optimizer is a user's own.
        """
        undo = self._undo_buffers if num_phases == 1 and self._changes_at_once(module_ids) else self._undo
        return [undo[module_id] for module_id in module_ids]

    def _end_start_up(self) -> None:
        """The first step compiled its phases under the start-up timeout; now a silent peer is a lost one."""
        if not self.is_warm:
            self.collective.set_timeout(self.config.learners.collective_timeout_seconds)
            self.is_warm = True

    def _check_layouts(self, batches: MultiBatch) -> None:
        """Raise ConfigError where fields are missing or do not fit the module; looks closely at new layouts only."""
        for module_id, batch in batches.items():
            if self._layouts.get(module_id) != (layout := layout_of(batch)):
                check_batch(batch, self.algorithms[module_id].required_fields)
                check_layout(module_id, batch, self.module_spec.modules[module_id])
                self._layouts[module_id] = layout

    def _draw(self, module_id: ModuleID, batch: Batch, shards: Sequence[int]) -> Mapping[str, torch.Tensor]:
        rows = num_rows(batch)
        streams = (shards, rows // len(shards)) if shards else ((self.collective.rank,), rows)
        return self._noise[module_id].draw(self.step, *streams)

    def _phase(
        self,
        index: int,
        phases: Mapping[ModuleID, Phase],
        batches: MultiBatch,
        noise: Mapping[ModuleID, Any],
        metrics: CallMetrics,
        losses: list[dict[ModuleID, Losses]],
    ) -> bool:
        """Run one phase, add its losses; return whether its gradients were finite and applied."""
        self.flat.reattach()  # a compiled phase writes to the buffer itself: nothing may be put back over it
        losses.append(self.compute_gradients(phases, batches, noise))
        self.flat.reattach()
        keys = sorted((module_id, name) for module_id, phase in phases.items() for name in phase.optimizers)
        with metrics.timed("exchanging"):
            self._exchange(keys, with_weights=index == 0)
        norms = self.postprocess_gradients(keys)
        self._gradient_norms.update(zip(keys, norms, strict=True))
        if not bool(torch.isfinite(norms).all()):
            self._refuse(keys, norms)
            return False
        self.apply_gradients(keys)
        for module_id, phase in phases.items():
            for update in phase.targets:
                if (self.step + 1) % update.every == 0:
                    self._targets[module_id, update.target].step(update.rate)
        return True

    def _exchange(self, keys: Sequence[SegmentKey], *, with_weights: bool) -> None:
        """Sum gradients, and with the first phase the weights, over all learners: one call where they adjoin."""
        if self.collective.size > 1:
            self.activity.enter(IN_COLLECTIVE)
            ranges = self.flat.ranges(keys)
            if with_weights:
                if ranges[-1][1] == self.flat.size:
                    ranges[-1] = (ranges[-1][0], len(self.flat.grad))
                else:
                    ranges.append((self.flat.size, len(self.flat.grad)))
            for start, stop in ranges:
                self.collective.all_reduce_(self.flat.grad[start:stop])
            self.activity.enter(COMPUTING)
        if with_weights:
            self._total_weights = self.flat.weights.clone()

    def _refuse(self, keys: Sequence[SegmentKey], norms: torch.Tensor) -> None:
        if self.config.learners.on_nonfinite == "raise":
            bad = ["/".join(key) for key, norm in zip(keys, norms.tolist(), strict=True) if not norm < float("inf")]
            raise NonFiniteGradientError(
                explain(
                    f"gradient at step {self.step}",
                    got=f"a value that is not finite in {', '.join(bad)}",
                    fix="lower the learning rate, set algorithm.grad_clip, or learners.on_nonfinite: skip",
                )
            )
