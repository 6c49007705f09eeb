"""Learner: carries out update requests, step by step and phase by phase."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from dask_rl.storage.errors import ConfigError, NonFiniteGradientError, explain

from .algorithm import Phase
from .batch import (
    OBSERVATION_FIELDS,
    Batch,
    ModuleID,
    MultiBatch,
    as_multi_batch,
    batch_from_episodes,
    check_batch,
    num_rows,
)
from .flat import SegmentKey
from .iterator import BatchIterator, BatchSource
from .learner_stages import LearnerStages
from .losses import num_valid_rows
from .metrics import STATE_KEY, CallMetrics, Result
from .minibatch import cyclic_minibatches
from .request import UpdateRequest


class Learner(LearnerStages):
    """Holds the modules of one rank and updates them.

    The stages of a step (`compute_losses`, `compute_gradients`, `postprocess_gradients`, `apply_gradients`) and the
    hooks around it may be overridden. Call `build` once before anything else.
    """

    def run(self, request: UpdateRequest) -> Result:
        """Carry out a request; the result has the metrics by module id and under "all_modules"."""
        self.before_gradient_based_update(request.timesteps)
        metrics = CallMetrics()
        if request.source is not None:
            self._run_iterator(request.source, request.num_iters, metrics)
        else:
            self._run_batch(request, metrics)
        self.weights_seq_no = request.number
        self.after_gradient_based_update(request.timesteps)
        return self._result(metrics, request)

    def _open_iterator(self, source: BatchSource) -> BatchIterator:
        key = source.key
        if key in self.iterators and self._sources[key] != source:
            self.iterators.pop(key).close()
            self.iterator_steps.pop(key, None)
        if key not in self.iterators:
            with ExitStack() as undo:
                iterator = source.open(self.device, self.config.learners.data_timeout_seconds)
                undo.callback(iterator.close)
                if key in self._saved_iterators:
                    iterator.load_state_dict(dict(self._saved_iterators[key]))
                    self.iterator_steps[key] = iterator.step
                undo.pop_all()
            self._saved_iterators.pop(key, None)
            self.iterators[key], self._sources[key] = iterator, source
        return self.iterators[key]

    def _run_iterator(self, source: BatchSource, num_iters: int, metrics: CallMetrics) -> None:
        iterator = self._open_iterator(source)
        completed = self.iterator_steps.get(source.key, 0)
        if iterator.step != completed:  # an earlier call failed between a batch and its step
            iterator.seek(completed)
        for _ in range(num_iters):
            with metrics.timed("waiting"):
                given = as_multi_batch(iterator.next_batch())
                self._check_known(given)
                batches = {module_id: self._cast(batch) for module_id, batch in given.items()}
            with metrics.timed("computing"):
                self._step(batches, iterator.shards, iterator.rows_per_shard, metrics)
            self.iterator_steps[source.key] = iterator.step

    def _run_batch(self, request: UpdateRequest, metrics: CallMetrics) -> None:
        batches = request.batch
        if batches is None:
            discount = self.config.algorithm.discount
            batches = as_multi_batch(batch_from_episodes(request.episodes or (), self.dtype, discount))
        self._check_known(batches)
        kept = {
            module_id: self._cast(batches[module_id])
            for module_id in sorted(batches)
            if module_id not in request.modules_to_skip
        }
        if not kept:
            self.num_skipped_steps += request.num_minibatches
            metrics.num_skipped_steps += request.num_minibatches
            return
        for minibatch in cyclic_minibatches(
            kept, request.num_minibatches, request.minibatch_size, shuffle_seed=request.shuffle_seed
        ):
            with metrics.timed("computing"):
                self._step(minibatch, (), 0, metrics)

    def _check_known(self, batches: MultiBatch) -> None:
        unknown = [module_id for module_id in batches if module_id not in self.module]
        if unknown:
            raise ConfigError(
                explain("batch", got=f"unknown modules {unknown}", allowed=list(self.module), fix="use these ids")
            )

    def _cast(self, batch: Batch) -> Batch:
        """Return a batch on the learner's device, floats and observations in its dtype; copies where they are not."""
        return {
            name: tensor.to(
                self.device,
                self.dtype if tensor.is_floating_point() or name in OBSERVATION_FIELDS else tensor.dtype,
                non_blocking=True,
            )
            for name, tensor in batch.items()
        }

    def _step(self, batches: MultiBatch, shards: Sequence[int], rows_per_shard: int, metrics: CallMetrics) -> None:
        """One gradient step of every module in `batches`, phase by phase."""
        noise = {}
        for module_id, batch in batches.items():
            check_batch(batch, self.algorithms[module_id].required_fields)
            streams = (shards, rows_per_shard) if shards else ((self.collective.rank,), num_rows(batch))
            noise[module_id] = self._noise[module_id].draw(self.step, *streams)
        rows = {module_id: num_valid_rows(batch) for module_id, batch in batches.items()}
        for index, module_id in enumerate(self.module):
            self.flat.weights[index] = rows.get(module_id, 0)
        applied = True
        plans = {module_id: self.algorithms[module_id].phases() for module_id in batches}
        for index in range(max(map(len, plans.values()))):
            phases = {module_id: plan[index] for module_id, plan in plans.items() if index < len(plan)}
            applied = applied and self._phase(index, phases, batches, noise, metrics)
        if not self._is_warm:
            # The first step compiled its phases under the start-up timeout; from now on a silent peer is a lost one.
            self.collective.set_timeout(self.config.learners.collective_timeout_seconds)
            self._is_warm = True
        for module_id in batches:
            metrics.add_rows(module_id, rows[module_id])
        self.step += 1
        metrics.num_steps += 1
        if not applied:
            self.num_skipped_steps += 1
            metrics.num_skipped_steps += 1

    def _phase(
        self,
        index: int,
        phases: Mapping[ModuleID, Phase],
        batches: MultiBatch,
        noise: Mapping[ModuleID, Any],
        metrics: CallMetrics,
    ) -> bool:
        """Run one phase; return whether its gradients were finite and applied."""
        self.flat.reattach()  # a compiled phase writes to the buffer itself: nothing may be put back over it
        for module_id, losses in self.compute_gradients(phases, batches, noise).items():
            metrics.add_losses(module_id, losses)
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
            ranges = self.flat.ranges(keys)
            if with_weights:
                if ranges[-1][1] == self.flat.size:
                    ranges[-1] = (ranges[-1][0], len(self.flat.grad))
                else:
                    ranges.append((self.flat.size, len(self.flat.grad)))
            for start, stop in ranges:
                self.collective.all_reduce_(self.flat.grad[start:stop])
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

    def _result(self, metrics: CallMetrics, request: UpdateRequest) -> Result:
        per_module: dict[ModuleID, dict[str, Any]] = {module_id: {} for module_id in self.module}
        for (module_id, name), norm in self._gradient_norms.items():
            per_module[module_id][f"gradient_norm/{name}"] = float(norm)
            schedule = self.optimizers[module_id, name].schedule
            per_module[module_id][f"learning_rate/{name}"] = schedule(max(self.step - 1, 0))
        learner = {
            "step": self.step,
            "weights_seq_no": self.weights_seq_no,
            "num_skipped_steps_lifetime": self.num_skipped_steps,
            "timesteps": dict(request.timesteps),
        }
        result = metrics.result(per_module, learner)
        if request.return_state:
            updated = [module_id for module_id in result if module_id != "all_modules"]
            state: Any = {"rl_module": self.module.get_state(updated, inference_only=True)}
            result[STATE_KEY] = state
        return result
