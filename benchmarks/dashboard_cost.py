"""What do the learners page and its metrics cost the training? The same two learners, with all of it and with none.

With: the workers' metrics tell of the learners, the run's rows go to the scheduler, its plugin listens, and a client
keeps a page open as a browser does, without painting it. Without: none of these; in turns, on one cluster and group.
Gate: at least 98% of the rate without.
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from bokeh.client import pull_session
from distributed import Client
from harness import Gate, Report, Sample, parse_repeats
from problem import MODULE_SPEC, feed_config, iql_config, write_dataset

from dask_rl.learners.config import LearnersConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.metrics import merge_results
from dask_rl.learners.published import METRIC
from dask_rl.pipeline.dashboard import PLUGIN_NAME
from dask_rl.pipeline.dashboard.page import UPDATE_MILLISECONDS
from dask_rl.pipeline.feed.source import plan_feed
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.pipeline.runs.learning_curve import curve_row
from dask_rl.pipeline.runs.live.control import RunControl
from dask_rl.pipeline.runs.live.dask_logger import DaskLogger
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.run_log import RunLog

NUM_LEARNERS, NUM_SHARDS = 2, 8
STEPS_PER_CALL, NUM_CALLS, WARM_UP_CALLS = 25, 24, 2
DATASET_STEPS = 100_000
TURNS = ("with", "without", "without", "with")
"""Of one repeat: a machine that grows slower or faster meanwhile touches both cases alike."""
WAIT_SECONDS = 120


class Page:
    """A client of the page in a process of its own, which takes what the server sends."""

    def __init__(self, address: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._is_open, self._end = context.Event(), context.Event()
        self._process = context.Process(target=_look, args=(address, self._is_open, self._end), daemon=True)

    def __enter__(self) -> "Page":
        self._process.start()
        if not self._is_open.wait(WAIT_SECONDS):
            raise TimeoutError("the page was not opened")
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._process.join(WAIT_SECONDS)


def _look(address: str, is_open: Event, end: Event) -> None:
    _be_elsewhere()
    session = pull_session(url=address)
    is_open.set()
    while not end.is_set():
        session.force_roundtrip()
        end.wait(UPDATE_MILLISECONDS / 1000)
    session.close()


def _be_elsewhere() -> None:
    """Take only what nobody else wants: a browser runs on another machine, or on cores of its own."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def _take_metric_away(dask_worker: Any) -> Any:
    metrics = dict(dask_worker.metrics)
    published = metrics.pop(METRIC)
    dask_worker.metrics = metrics
    dask_worker.learners_metric = published


def _give_metric_back(dask_worker: Any) -> None:
    dask_worker.metrics = {**dask_worker.metrics, METRIC: dask_worker.learners_metric}


def _time_metric(dask_worker: Any) -> float:
    began = time.perf_counter()
    for _ in range(1000):
        dask_worker.metrics[METRIC](dask_worker)
    return (time.perf_counter() - began) * 1e3  # µs of one


async def _take_plugin_away(dask_scheduler: Any) -> None:
    plugin = dask_scheduler.plugins[PLUGIN_NAME]
    await plugin.close()
    dask_scheduler.remove_plugin(PLUGIN_NAME)


class Bench:
    """One group, that trains with the page and without it."""

    def __init__(self, client: Client, group: LearnerGroup, directory: Path) -> None:
        self._client, self._group = client, group
        feed = feed_config(directory / "random.zarr", NUM_LEARNERS, NUM_SHARDS, resident=True)
        self._data = plan_feed(feed)
        self._run = RunDirectory(directory / "run")
        self._run.path.mkdir()
        sizes = {"num_steps": 10**6, "batch_size": feed.batch_size, "num_shards": NUM_SHARDS}
        self._job = TrainJob(dataset=feed.dataset, algorithm=group.config.algorithm, run=str(self._run.path), **sizes)
        self._address = client.dashboard_link.removesuffix("status") + "learners"
        self._step = 0
        self.metric_microseconds: list[float] = []

    def warm_up(self) -> None:
        """Open the data, take the first steps."""
        with RunLog(self._run) as log:
            log.begin(-1)
            self._train(log, WARM_UP_CALLS)

    def with_page(self) -> tuple[float, float]:
        """Return steps per second, and the driver's CPU seconds per second."""
        control = RunControl(self._run.name, self._job.num_steps)
        logger = DaskLogger(self._client, self._run, self._job, control, self._group.identity.group_id)
        with Page(self._address), RunLog(self._run, [logger]) as log:
            log.begin(self._step)
            self._train(log, 1)
            timing = self._timed(log)
            self.metric_microseconds += self._client.run(_time_metric).values()
            return timing

    def without(self) -> tuple[float, float]:
        """The same, of training alone."""
        self._client.run(_take_metric_away)
        self._client.run_on_scheduler(_take_plugin_away)
        with RunLog(self._run) as log:
            log.begin(self._step)
            self._train(log, 1)
            timing = self._timed(log)
        self._client.run(_give_metric_back)
        self._client.run_on_scheduler(_give_plugin_back)
        return timing

    def _timed(self, log: RunLog) -> tuple[float, float]:
        began, cpu = time.perf_counter(), time.process_time()
        self._train(log, NUM_CALLS)
        seconds = time.perf_counter() - began
        return NUM_CALLS * STEPS_PER_CALL / seconds, (time.process_time() - cpu) / seconds

    def _train(self, log: RunLog, num_calls: int) -> None:
        for _ in range(num_calls):
            results = self._group.update_from_iterators(self._data, num_iters=STEPS_PER_CALL)
            self._step += STEPS_PER_CALL
            log.append("train", self._step, curve_row(merge_results(results), {"default_module": 0.0}))


async def _give_plugin_back(dask_scheduler: Any) -> None:
    """Start it anew; its pages are still there, and ask the scheduler for it."""
    from dask_rl.pipeline.dashboard import LearnersPlugin

    await dask_scheduler.register_scheduler_plugin(LearnersPlugin(), idempotent=True)


def main() -> int:
    repeats = parse_repeats()
    report = Report("dashboard_cost", "Two learners with the learners page open, and without page and metrics")
    threads = max(1, len(os.sched_getaffinity(0)) // NUM_LEARNERS)
    settings = LearnersConfig(num_learners=NUM_LEARNERS, compile="off", num_threads_per_learner=threads)
    cluster = ClusterConfig(num_workers=NUM_LEARNERS, startup_timeout_seconds=600)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_dataset(directory / "random.zarr", DATASET_STEPS).close()
        client = stack.enter_context(open_cluster(cluster, num_workers=NUM_LEARNERS))
        group = stack.enter_context(LearnerGroup(iql_config(settings), module_spec=MODULE_SPEC, client=client))
        if client is None:
            raise RuntimeError("a local cluster has a client")
        bench = Bench(client, group, directory)
        bench.warm_up()
        cases: dict[str, Callable[[], tuple[float, float]]] = {"with": bench.with_page, "without": bench.without}
        timings: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
        for _ in range(repeats):
            turns: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
            for case in TURNS:
                turns[case].append(cases[case]())
            for case, pair in turns.items():
                timings[case].append((statistics.mean(r for r, _ in pair), statistics.mean(c for _, c in pair)))
    for case, values in timings.items():
        report.samples[f"{case}: rate"] = Sample("steps/s", tuple(rate for rate, _ in values))
        report.samples[f"{case}: CPU of driver and scheduler"] = Sample("%", tuple(100 * cpu for _, cpu in values))
    report.samples["a learner's row for a heartbeat"] = Sample("µs", tuple(bench.metric_microseconds))
    ratio = report.samples["with: rate"] / report.samples["without: rate"]
    report.samples["rate with over rate without"] = ratio
    report.gates = [Gate("rate with page and metrics over the rate without", ratio, 0.98)]
    report.notes.append(
        f"{NUM_CALLS} calls of {STEPS_PER_CALL} steps a case, each a row of metrics. Driver and scheduler are one "
        "process; its CPU time is in percent of one core. The page's client is on the same cores, and paints nothing."
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
