"""Learner: carries out update requests, step by step and phase by phase."""

from contextlib import ExitStack
from typing import Any

import torch

from dask_rl.storage.errors import ConfigError, PeersLostError, explain

from .activity import IDLE, IN_COLLECTIVE, IN_HOOK, OPENING_DATA, WAITING_FOR_DATA
from .agreement import Agreement, agree_on_update
from .batch import OBSERVATION_FIELDS, Batch, ModuleID, MultiBatch, as_multi_batch
from .episodes import multi_batch_from_episodes
from .images import MIN_IMAGE_RANK
from .iterator import BatchIterator, BatchSource
from .learner_modules import LearnerModules
from .metrics import STATE_KEY, CallMetrics, OpenCall, Result
from .minibatch import cyclic_minibatches
from .request import UpdateRequest

MIN_KEPT_RESULTS = 8
"""Results that a learner keeps at least, for a driver that asks again; more where more requests may be under way."""


class Learner(LearnerModules):
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
            PeersLostError: the group is over; nothing has begun.
        """
        if request.number <= self.weights_seq_no:
            return self._earlier_result(request)
        self.check_may_begin(request)
        try:
            metrics = self._begin(request)
            if request.source is not None:
                self._run_iterator(request.source, request.num_iters, metrics)
            else:
                self._run_batch(request, metrics)
            self.activity.enter(IN_HOOK)
            self.after_gradient_based_update(request.timesteps, **request.kwargs)
            return self._end(request, metrics)
        finally:
            self.activity.enter(IDLE)

    def check_may_begin(self, request: UpdateRequest) -> None:
        """Refuse a request that cannot be carried out here and now, before it takes the place of one that is open.

        One that was carried out is never refused.
        """
        if request.number <= self.weights_seq_no:
            return
        self._check_stop()
        if not self.collective.is_open:
            subject, fix = f"update {request.number} at step {self.step}", "join the next generation"
            raise PeersLostError(explain(subject, got="a group that was left", fix=fix))

    def _begin(self, request: UpdateRequest) -> CallMetrics:
        if self.open_request != request.number:
            self.open_request, self.open_first_step = request.number, self.step
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
        under_way = self.config.learners.max_requests_in_flight_per_learner + 1  # a synchronous one beside them
        for number in sorted(self._results)[: -max(MIN_KEPT_RESULTS, under_way)]:
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
        goes_on = self._goes_on(source)
        if key in self.iterators and self._sources[key] != source:
            self._saved_iterators[key] = self._iterator_states()[key]  # not lost where opening it again fails
            self.iterators.pop(key).close()
        if not goes_on:
            self.iterator_steps.pop(key, None)
            self._saved_iterators.pop(key, None)
        if key not in self.iterators:
            self.activity.enter(OPENING_DATA)
            with ExitStack() as undo:
                iterator = source.open(self.device, self.config.learners.data_timeout_seconds)
                undo.callback(iterator.close)
                if key in self._saved_iterators:
                    self._load_iterator(iterator, key, self._saved_iterators[key])
                undo.pop_all()
            self._saved_iterators.pop(key, None)
            self.iterators[key], self._sources[key] = iterator, source
        return self.iterators[key]

    def _goes_on(self, source: BatchSource) -> bool:
        """Tell whether a source is that of the earlier calls; one that has seen none of them asks the others."""
        previous = self._sources.get(source.key)
        is_new = previous is not None and previous != source and not source.continues(previous)
        if source.key in self._taken_over:
            self._taken_over.discard(source.key)
            objections = torch.tensor([int(is_new)], device=self.device)
            self.activity.enter(IN_COLLECTIVE)
            self.collective.all_reduce_(objections)
            is_new = bool(objections)
        return not is_new

    def _run_iterator(self, source: BatchSource, num_iters: int, metrics: CallMetrics) -> None:
        iterator = self._open_iterator(source)
        completed = self.iterator_steps.get(source.key, 0)
        if iterator.step != completed:  # a step was begun and not finished, here or elsewhere
            iterator.seek(completed)
        is_checked = False
        for _ in range(self.step - self.open_first_step, num_iters):
            self._check_stop()
            self.activity.enter(WAITING_FOR_DATA)
            with metrics.timed("waiting"):  # for the own data, and where learners must agree for the others'
                given = as_multi_batch(iterator.next_batch())
                self._check_known(given)
                chosen = self._choose(given, metrics, is_aligned=iterator.is_aligned)
                if not is_checked:
                    self._check_layouts(chosen)
                    # Then all batches hold the same, and all of it is trained on.
                    is_checked = iterator.is_aligned and not callable(self.modules_to_update)
                batches = {module_id: self._cast(batch) for module_id, batch in chosen.items()}
            self._step(batches, iterator.shards, metrics)
            self.iterator_steps[source.key] = iterator.step

    def _run_batch(self, request: UpdateRequest, metrics: CallMetrics) -> None:
        self.activity.enter(OPENING_DATA)
        batches = request.batch
        if batches is None:
            episodes, config = request.episodes or (), self.config
            batches = multi_batch_from_episodes(episodes, self.dtype, lambda id_: config.algorithm_of(id_).discount)
        self._check_known(batches)
        agreed = self._agree(request, self._selected(batches))
        self._check_layouts({module_id: batches[module_id] for module_id in agreed.module_ids})
        kept = {module_id: self._cast(batches[module_id]) for module_id in agreed.module_ids}
        count, done = agreed.num_minibatches, self.step - self.open_first_step
        size, seed = request.minibatch_size, request.shuffle_seed
        for minibatch in cyclic_minibatches(kept, count, size, shuffle_seed=seed, start=done):
            metrics.num_skipped_module_steps += agreed.num_left_out
            self._step(self._choose(minibatch, metrics, is_aligned=True), (), metrics)

    def _agree(self, request: UpdateRequest, batches: MultiBatch) -> Agreement:
        """Return the plan of an update: the driver's, or that of the learners where it has not seen the rows."""
        if request.num_minibatches is not None:
            kept = tuple(module_id for module_id in sorted(batches) if module_id not in request.modules_to_skip)
            return Agreement(kept, len(batches.keys() & request.modules_to_skip), request.num_minibatches)
        self.activity.enter(IN_COLLECTIVE)
        return agree_on_update(
            self.collective,
            batches,
            num_epochs=request.num_epochs,
            minibatch_size=request.minibatch_size,
            module_ids=list(self.module),
            device=self.device,
        )

    def _check_known(self, batches: MultiBatch) -> None:
        unknown = [module_id for module_id in batches if module_id not in self.module]
        if unknown:
            raise ConfigError(
                explain("batch", got=f"unknown modules {unknown}", allowed=list(self.module), fix="use these ids")
            )

    def _cast(self, batch: Batch) -> Batch:
        """Return a batch on the learner's device, floats and observations in its dtype; copies where they are not.

        Images stay bytes until a network takes them: four times as much would have to be moved. So do the parts of
        nested observations, which networks cast themselves.
        """
        return {
            name: tensor.to(
                self.device,
                self.dtype if tensor.is_floating_point() or _is_cast(name, tensor) else tensor.dtype,
                non_blocking=True,
            )
            for name, tensor in batch.items()
        }

    def _result(self, metrics: CallMetrics, request: UpdateRequest) -> Result:
        per_module: dict[ModuleID, dict[str, Any]] = {
            module_id: {
                "num_rows_lifetime": counts["num_rows"],
                "num_steps_lifetime": counts["num_steps"],
                "weights_seq_no": self.weights_seq_no,
            }
            for module_id, counts in self.lifetime.state_dict().items()
        }
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
            # one that took over a finished update does not know its modules
            updated = [module_id for module_id in result if module_id != "all_modules"] or list(self.module)
            state: Any = {"rl_module": self.module.get_state(updated, inference_only=True)}
            result[STATE_KEY] = state
        return result


def _is_cast(name: str, tensor: torch.Tensor) -> bool:
    is_image = tensor.dtype == torch.uint8 and tensor.dim() > MIN_IMAGE_RANK
    return name in OBSERVATION_FIELDS and not is_image
