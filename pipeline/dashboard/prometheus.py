"""Prometheus metrics of learners and runs on the scheduler's `/metrics`. Needs prometheus_client."""

import functools
import time
import weakref
from collections.abc import Iterator
from typing import Any

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from .checks import number
from .learner_record import LearnerRecord
from .live_runs import LiveRuns

_PLUGINS: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Of all schedulers in this process: Dask serves the one registry of the process."""
_GROUP = ("group", "group_id")
_LEARNER = (*_GROUP, "rank", "worker")
_RUN = ("run", "run_id")
_GAUGES = {
    "steps_per_second": "Gradient steps per second over the last seconds",
    "step": "Gradient steps done by the group",
    "generation": "Number of times that the group has met",
}
_SECONDS = {
    "data_wait": "Time spent waiting for data",
    "compute": "Time spent computing",
    "collective": "Time spent exchanging gradients",
}


class LearnersCollector:
    """Reads what is known when somebody asks."""

    def describe(self) -> list[Any]:
        """Return nothing: Dask's own collectors are described in the same way."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of all learners and runs."""
        everything = [plugin.live_runs for plugin in list(_PLUGINS) if plugin.is_open]
        learners: dict[tuple[str, ...], LearnerRecord] = {}
        for live_runs in everything:
            for group in live_runs.groups.values():
                for each in group.learners.values():
                    learners[group.name, group.group_id, str(each.rank), each.address] = each
        yield from _learner_families(learners)
        lost = CounterMetricFamily("dask_rl_learners_lost", "Learners that were lost", labels=_GROUP)
        for live_runs in everything:
            for group in live_runs.groups.values():
                lost.add_metric((group.name, group.group_id), group.num_lost)
        yield lost
        yield from _run_families(everything)


def _learner_families(learners: dict[tuple[str, ...], LearnerRecord]) -> Iterator[Any]:
    for name, what in _GAUGES.items():
        gauge = GaugeMetricFamily(f"dask_rl_learner_{name}", what, labels=_LEARNER)
        for labels, learner in learners.items():
            gauge.add_metric(labels, getattr(learner, name))
        yield gauge
    for index, (name, what) in enumerate(_SECONDS.items(), 1):
        counter = CounterMetricFamily(f"dask_rl_learner_{name}", what, labels=_LEARNER, unit="seconds")
        for labels, learner in learners.items():
            counter.add_metric(labels, learner.samples[-1][index] if learner.samples else 0.0)
        yield counter
    state = GaugeMetricFamily("dask_rl_learner_state", "1 for the state that it is in", labels=(*_LEARNER, "state"))
    for labels, learner in learners.items():
        state.add_metric((*labels, learner.state), 1)
    yield state


def _run_families(everything: list[LiveRuns]) -> Iterator[Any]:
    now = time.monotonic()
    step = GaugeMetricFamily("dask_rl_run_step", "Gradient steps done", labels=_RUN)
    planned = GaugeMetricFamily("dask_rl_run_num_steps", "Gradient steps planned", labels=_RUN)
    status = GaugeMetricFamily("dask_rl_run_status", "1 for the status that it has", labels=(*_RUN, "status"))
    loss = GaugeMetricFamily("dask_rl_run_loss", "Losses of the newest row of metrics", labels=(*_RUN, "loss"))
    score = GaugeMetricFamily("dask_rl_run_return_mean", "Mean return of the last evaluation", labels=_RUN)
    for run in [run for live_runs in everything for run in live_runs.runs.values()]:
        labels = run.name, run.run_id
        step.add_metric(labels, run.step)
        planned.add_metric(labels, run.num_steps)
        status.add_metric((*labels, run.status_at(now)), 1)
        for name in run.losses():
            loss.add_metric((*labels, name), run.latest[name])
        returns = [value for row in run.evaluation_rows if (value := number(row.get("return_mean"))) is not None]
        if returns:
            score.add_metric(labels, returns[-1])
    yield from (step, planned, status, loss, score)


@functools.cache
def _register() -> None:
    prometheus_client.REGISTRY.register(LearnersCollector())


def add_to(scheduler: Any, plugin: Any) -> None:
    """Serve what a scheduler's plugin knows."""
    _register()  # once a process: a name that is registered twice is an error
    _PLUGINS.add(plugin)
