"""Learner: carries out update requests, step by step and phase by phase."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from dask_rl.storage.errors import ConfigError, LearnerStoppedError, NonFiniteGradientError, explain

from .activity import COMPUTING, IDLE, IN_COLLECTIVE, IN_HOOK, OPENING_DATA, WAITING_FOR_DATA
from .algorithm import Phase
from .batch import (
    OBSERVATION_FIELDS,
    Batch,
    ModuleID,
    MultiBatch,
    as_multi_batch,
    check_batch,
    num_rows,
)
from .episodes import multi_batch_from_episodes
from .flat import SegmentKey
from .iterator import BatchIterator, BatchSource
from .learner_stages import LearnerStages
from .losses import num_valid_rows
from .metrics import STATE_KEY, CallMetrics, OpenCall, Result
from .minibatch import cyclic_minibatches
from .request import UpdateRequest

NUM_KEPT_RESULTS = 8
"""Results that a learner keeps for a driver that asks again: more than may be under way."""


class Learner(LearnerStages):
    """Holds the modules of one rank and updates them.

    The stages of a step (`compute_losses`, `compute_gradients`, `postprocess_gradients`, `apply_gradients`) and the
    hooks around it may be overridden. Call `build` once before anything else.
    """

    def run(self, request: UpdateRequest) -> Result:
        """Carry out a request; the result has the metrics by module id and under "all_modules".

        A request that was carried out before gives the result that it gave then, or one without steps where its
        outcome was taken over from another learner. One that was begun goes on where it stopped.

        Raises:
            LearnerStoppedError: `stop_requested` was set.
        """
        if request.number <= self.weights_seq_no:
            return self._earlier_result(request)
        metrics = self._begin(request)
        try:
            if request.source is not None:
                self._run_iterator(request.source, request.num_iters, metrics)
            else:
                self._run_batch(request, metrics)
            self.activity.enter(IN_HOOK)
            self.after_gradient_based_update(request.timesteps, **request.kwargs)
            return self._end(request, metrics)
        finally:
            self.activity.enter(IDLE)

    def _begin(self, request: UpdateRequest) -> CallMetrics:
        if self.open_request != request.number:
            self.open_request, self.open_first_step = request.number, self.step
            self._call = None
        if self._call is None or self._call.number != request.number:
            self._call = OpenCall(request.number)
        if not self._call.is_announced:
            self.activity.enter(IN_HOOK)
            self.before_gradient_based_update(request.timesteps, **request.kwargs)
            self._call.is_announced = True
        return self._call.metrics

    def _end(self, request: UpdateRequest, metrics: CallMetrics) -> Result:
        self.weights_seq_no, self.open_request, self._call = request.number, None, None
        result = self._results[request.number] = self._result(metrics, request)
        for number in sorted(self._results)[:-NUM_KEPT_RESULTS]:
            del self._results[number]
        return result

    def _earlier_result(self, request: UpdateRequest) -> Result:
        if request.number in self._results:
            return self._results[request.number]
        # The others finished it while this learner failed in its last step: what it knows of it.
        call = self._call if self._call is not None and self._call.number == request.number else None
        return self._result(call.metrics if call is not None else CallMetrics(), request)

    def _open_iterator(self, source: BatchSource) -> BatchIterator:
        key = source.key
        if key in self.iterators and self._sources[key] != source:
            self.iterators.pop(key).close()
            if not source.continues(self._sources.pop(key)):
                self.iterator_steps.pop(key, None)
        if key not in self.iterators:
            self.activity.enter(OPENING_DATA)
            with ExitStack() as undo:
                iterator = source.open(self.device, self.config.learners.data_timeout_seconds)
                undo.callback(iterator.close)
                if key in self._saved_iterators:
                    iterator.load_state_dict(dict(self._saved_iterators[key]))
                undo.pop_all()
            self._saved_iterators.pop(key, None)
            self.iterators[key], self._sources[key] = iterator, source
        return self.iterators[key]

    def _run_iterator(self, source: BatchSource, num_iters: int, metrics: CallMetrics) -> None:
        iterator = self._open_iterator(source)
        completed = self.iterator_steps.get(source.key, 0)
        if iterator.step != completed:  # a step was begun and not finished, here or elsewhere
            iterator.seek(completed)
        for _ in range(self.step - self.open_first_step, num_iters):
            self._check_stop()
            self.activity.enter(WAITING_FOR_DATA)
            with metrics.timed("waiting"):
                given = as_multi_batch(iterator.next_batch())
                self._check_known(given)
                batches = {module_id: self._cast(batch) for module_id, batch in given.items()}
            with metrics.timed("computing"):
                self._step(batches, iterator.shards, iterator.rows_per_shard, metrics)
            self.iterator_steps[source.key] = iterator.step

    def _run_batch(self, request: UpdateRequest, metrics: CallMetrics) -> None:
        self.activity.enter(OPENING_DATA)
        batches = request.batch
        if batches is None:
            episodes, config = request.episodes or (), self.config
            batches = multi_batch_from_episodes(episodes, self.dtype, lambda id_: config.algorithm_of(id_).discount)
        self._check_known(batches)
        kept = {
            module_id: self._cast(batches[module_id])
            for module_id in sorted(batches)
            if module_id not in request.modules_to_skip
        }
        count, done = request.num_minibatches or 0, self.step - self.open_first_step
        if not kept:
            for _ in range(done, count):
                self._skip_step(metrics)
            return
        size, seed = request.minibatch_size, request.shuffle_seed
        for minibatch in cyclic_minibatches(kept, count, size, shuffle_seed=seed, start=done):
            with metrics.timed("computing"):
                self._step(minibatch, (), 0, metrics)

    def _skip_step(self, metrics: CallMetrics) -> None:
        """Count a step in which no module learns."""
        self.step += 1
        self.num_skipped_steps += 1
        metrics.num_steps += 1
        metrics.num_skipped_steps += 1

    def _check_stop(self) -> None:
        if self.stop_requested:
            fix = "let the learner join a group again to go on"
            raise LearnerStoppedError(explain(f"learner at step {self.step}", got="a request to stop", fix=fix))

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
        self._check_stop()
        self.activity.enter(COMPUTING)
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
        if not self.is_warm:
            # The first step compiled its phases under the start-up timeout; from now on a silent peer is a lost one.
            self.collective.set_timeout(self.config.learners.collective_timeout_seconds)
            self.is_warm = True
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
