"""What does a group of learners cost? Two learners that exchange gradients, against two that do not.

Both run on the same two worker processes with the same threads, each learner fed with 256 rows a step from a dataset.
Gates: at least 60% of the summed rate of the independent learners; of a step's time, everything but compute and
exchange (waiting for data, calls, the rest) below 5%.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client
from harness import Gate, Report, Sample, parse_repeats
from problem import MODULE_SPEC, feed_config, iql_config, write_dataset

from dask_rl.learners.calls import Membership
from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.hiring import Hiring
from dask_rl.learners.learner import Learner
from dask_rl.learners.manager import ActorManager, values
from dask_rl.learners.metrics import Result
from dask_rl.learners.module import MultiRLModuleSpec
from dask_rl.learners.request import UpdateRequest
from dask_rl.pipeline.feed.source import DatasetSource, plan_feed
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster

NUM_LEARNERS, SHARDS_PER_LEARNER = 2, 4
NUM_STEPS, WARM_UP_STEPS = 300, 20
DATASET_STEPS = 200_000
TIMEOUT_SECONDS = 600
PARTS = ("computing", "exchanging", "waiting", "call", "other")


class Independent:
    """As many learners as the group has, on the same workers, which know nothing of each other."""

    def __init__(self, config: LearnerGroupConfig, sources: Sequence[DatasetSource], client: Client) -> None:
        self._sources = sources
        self._number = 0
        arguments = (config, MultiRLModuleSpec.of(MODULE_SPEC), Learner)
        places = config.learners.model_copy(update={"num_learners": len(sources)})
        self._manager = ActorManager(Hiring(client, places, lambda: arguments).first())
        self._call("build", [()] * len(sources))
        self._call("join", [(Membership(0, 1),)] * len(sources))

    def run(self, num_steps: int) -> list[Result]:
        """Let all learners take so many steps at the same time."""
        self._number += 1
        requests = [(UpdateRequest(self._number, source=source, num_iters=num_steps),) for source in self._sources]
        results: list[Result] = self._call("run", requests)
        return results

    def _call(self, method: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        return values(self._manager.call(method, arguments, timeout=TIMEOUT_SECONDS, stage=method))

    def close(self) -> None:
        """Close and release the learners."""
        self._call("close", [()] * len(self._manager))
        self._manager.release()


@dataclass(frozen=True)
class Timing:
    """One call: the learners' summed rate, and where the time of an average learner's step went."""

    steps_per_second: float
    milliseconds: dict[str, float]


def timing(results: list[Result], wall_seconds: float, num_steps: int) -> Timing:
    rows = [result["all_modules"] for result in results]
    seconds = {part: sum(row[f"seconds_{part}"] for row in rows) / len(rows) for part in PARTS[:3]}
    inside = sum(row["seconds"] for row in rows) / len(rows)
    seconds |= {"call": wall_seconds - inside, "other": inside - sum(seconds.values())}
    rate = sum(num_steps / (wall_seconds - inside + row["seconds"]) for row in rows)
    return Timing(rate, {part: value * 1e3 / num_steps for part, value in seconds.items()})


def measure(path: Path, repeats: int) -> dict[str, list[Timing]]:
    threads = max(1, len(os.sched_getaffinity(0)) // NUM_LEARNERS)
    settings = {"compile": "off", "transport": "gloo", "num_threads_per_learner": threads}
    config = iql_config(LearnersConfig(num_learners=NUM_LEARNERS, **settings))
    single = iql_config(LearnersConfig(num_learners=1, **settings))
    feed = feed_config(path, NUM_LEARNERS, NUM_LEARNERS * SHARDS_PER_LEARNER, resident=True)
    shared = plan_feed(feed).shares(NUM_LEARNERS)
    alone = plan_feed(feed_config(path, 1, SHARDS_PER_LEARNER, resident=True)).shares(1)
    cluster = ClusterConfig(num_workers=NUM_LEARNERS, startup_timeout_seconds=TIMEOUT_SECONDS)
    with (
        open_cluster(cluster, num_workers=NUM_LEARNERS) as client,
        LearnerGroup(config, module_spec=MODULE_SPEC, client=client) as group,
    ):
        if client is None:
            raise RuntimeError("a local cluster has a client")
        independent = Independent(single, alone * NUM_LEARNERS, client)
        cases = {
            "group": lambda n: group.update_from_iterators(shared, num_iters=n),
            "independent": independent.run,
        }
        timings: dict[str, list[Timing]] = {case: [] for case in cases}
        for run in cases.values():
            run(WARM_UP_STEPS)
        for repeat in range(repeats):
            for case in list(cases) if repeat % 2 == 0 else reversed(cases):
                start = time.perf_counter()
                results = cases[case](NUM_STEPS)
                timings[case].append(timing(results, time.perf_counter() - start, NUM_STEPS))
        independent.close()
    return timings


def main() -> int:
    repeats = parse_repeats()
    report = Report("group_overhead", "Two learners in a group over gloo, and two independent ones; 256 rows each")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "random.zarr"
        write_dataset(path, DATASET_STEPS).close()
        timings = measure(path, repeats)
    for case, calls in timings.items():
        report.samples[f"{case}: summed rate"] = Sample("steps/s", tuple(call.steps_per_second for call in calls))
        for part in PARTS:
            label = f"{case}: {part}"
            report.samples[label] = Sample("ms/step", tuple(call.milliseconds[part] for call in calls))
    rate = report.samples["group: summed rate"] / report.samples["independent: summed rate"]
    rest = tuple(
        100 * sum(call.milliseconds[part] for part in PARTS[2:]) / sum(call.milliseconds.values())
        for call in timings["group"]
    )
    report.samples["group rate over independent rate"] = rate
    report.gates = [
        Gate("group's rate over the summed rate of independent learners", rate, 0.6),
        Gate("share of data wait, calls and the rest in the group", Sample("%", rest), 5.0, "at most"),
    ]
    report.notes.append(
        f"{NUM_STEPS} steps a call. exchanging includes the wait for the slower learner; call is what the driver "
        "waits beyond the time that a learner spends on a request; other is the learner's own bookkeeping."
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
