"""How long does a learner wait for data? One IQL learner, compiled, fed from a dataset: in memory, and streaming.

Gates: waiting (with the gathering of batches) below 2% of the step time, in memory and streaming. Windows far smaller
than those that are chosen by default are shown beside it, without a gate: each is a load and cuts a gather short.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness import Gate, Report, Sample, parse_repeats
from problem import MODULE_SPEC, feed_config, iql_config, random_batches, write_dataset

from dask_rl.learners.config import LearnersConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.metrics import Result
from dask_rl.pipeline.feed.source import plan_feed

NUM_STEPS, WARM_UP_STEPS = 300, 20
DATASET_STEPS, NUM_SHARDS = 500_000, 8
WINDOW_ROWS, SMALL_WINDOW_ROWS = 32_768, 4096


def main() -> int:
    repeats = parse_repeats()
    report = Report("data_wait", "Data wait of one compiled IQL learner, 256 rows a step")
    config = iql_config(LearnersConfig(compile="on"))
    with tempfile.TemporaryDirectory() as directory, LearnerGroup(config, module_spec=MODULE_SPEC) as group:
        path = Path(directory) / "random.zarr"
        write_dataset(path, DATASET_STEPS).close()
        feeds = {
            "resident": feed_config(path, 1, NUM_SHARDS, resident=True),
            "streaming": feed_config(path, 1, NUM_SHARDS, resident=False, window_rows=WINDOW_ROWS),
            "small windows": feed_config(path, 1, NUM_SHARDS, resident=False, window_rows=SMALL_WINDOW_ROWS),
        }
        results: dict[str, list[dict[str, float]]] = {mode: [] for mode in ("no feed", *feeds)}
        runs = {"no feed": _run_of(group, random_batches(32))}
        for mode, feed in feeds.items():
            source = plan_feed(feed).shares(1)[0]
            runs[mode] = _run_of(group, type(source)(source.feed, source.shards, name=mode))
        for run in runs.values():
            run(WARM_UP_STEPS)
        for repeat in range(repeats):
            for mode in list(runs) if repeat % 2 == 0 else reversed(runs):
                results[mode].append(runs[mode](NUM_STEPS)[0]["all_modules"])
    for mode, calls in results.items():
        step = Sample("ms/step", tuple(call["seconds"] * 1e3 / NUM_STEPS for call in calls))
        report.samples[f"{mode}: step"] = step
        share = Sample("%", tuple(100 * call["seconds_waiting"] / call["seconds"] for call in calls))
        report.samples[f"{mode}: data wait"] = share
        if mode in ("resident", "streaming"):
            report.gates.append(Gate(f"{mode}: share of data wait in the step time", share, 2.0, "at most"))
    every, small_every = WINDOW_ROWS // 256, SMALL_WINDOW_ROWS // 256
    report.notes.append(
        f"Streaming: windows of {WINDOW_ROWS} rows a data shard (small: {SMALL_WINDOW_ROWS}), so one is loaded every "
        f"{every} (small: {small_every}) steps on average; no feed: the same few batches from a list."
    )
    return report.finish()


def _run_of(group: LearnerGroup, source: object) -> Callable[[int], list[Result]]:
    return lambda num_steps: group.update_from_iterators([source], num_iters=num_steps)  # type: ignore[list-item]


if __name__ == "__main__":
    sys.exit(main())
