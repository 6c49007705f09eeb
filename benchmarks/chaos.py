"""Do faults change what is learned, and how much time does one cost?

A run of IQL on two learner processes is disturbed by a seeded schedule of faults: a worker is killed (SIGKILL), stopped
for good (SIGSTOP), or stopped for a moment. Its final weights must be those of the undisturbed run, bit by bit. The
time that a fault costs is that until the group is past the step at which it struck, less the time of a step.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from distributed import Client
from harness import MIN_REPEATS, Gate, Report, Sample
from problem import MODULE_SPEC, feed_config, iql_config, write_dataset

from dask_rl.learners.config import LearnersConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.pipeline.feed.source import FeedPlan, plan_feed
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.pipeline.runs.trained_policy import hash_weights
from dask_rl.storage.errors import DaskRLError

KINDS = ("kill", "stop", "pause")
STEPS_PER_CALL = 50
NUM_SHARDS = 8
DATASET_STEPS = 20_000
PAUSE_SECONDS = 1.0
MAX_KILL_SECONDS = 6.0
WAIT_SECONDS = 300.0
LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Fault:
    """One fault of the schedule."""

    kind: str
    step: int
    rank: int


def schedule(num_faults: int, num_steps: int, seed: int, kinds: Sequence[str]) -> list[Fault]:
    """Return faults spread over the run; every kind comes, a learner is struck at any time."""
    rng = np.random.default_rng(seed)
    span = num_steps / num_faults
    order = [kinds[number % len(kinds)] for number in range(num_faults)]
    rng.shuffle(order)
    return [
        Fault(kind, int((number + rng.uniform(0.1, 0.6)) * span), int(rng.integers(2)))
        for number, kind in enumerate(order)
    ]


class Chaos(threading.Thread):
    """Strikes as scheduled, from beside the updates, and times how long each fault holds up the group."""

    def __init__(self, group: LearnerGroup, faults: Sequence[Fault], steps_per_second: float) -> None:
        super().__init__(daemon=True)
        self._group, self._faults, self._steps_per_second = group, faults, steps_per_second
        self.lost: list[tuple[Fault, float]] = []

    def run(self) -> None:
        """Strike, and wait until the group has got over it."""
        for fault in self._faults:
            self._await_step(fault.step)
            pid = self._await_pid(fault.rank)
            struck_at, began = self._step(), time.monotonic()
            os.kill(pid, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
            if fault.kind == "pause":
                time.sleep(PAUSE_SECONDS)
                os.kill(pid, signal.SIGCONT)
            beyond = struck_at + 5
            self._await_step(beyond)
            lost = time.monotonic() - began - (beyond - struck_at) / self._steps_per_second
            self.lost.append((fault, max(0.0, lost)))
            print(f"  step {struck_at:5d}: {fault.kind} learner {fault.rank}: {lost:.1f} s lost", flush=True)

    def _await_step(self, step: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self._step() < step:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no learner came to step {step} in {WAIT_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)

    def _await_pid(self, rank: int) -> int:
        deadline = time.monotonic() + WAIT_SECONDS
        while (pid := self._group.manager.handles[rank].pid) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no process of learner {rank} in {WAIT_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)
        return pid

    def _step(self) -> int:
        steps = [0]
        for handle in list(self._group.manager.handles):
            try:
                steps.append(handle.ask_health().result(0.5).step)
            except (OSError, RuntimeError, AttributeError, DaskRLError):
                continue  # struck, or not there yet
        return max(steps)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    weights_hash: str
    steps_per_second: float
    lost: Sequence[tuple[Fault, float]] = ()
    """The faults that struck, and the seconds that each cost."""


def train(
    client: Client,
    plan: FeedPlan,
    settings: LearnersConfig,
    num_steps: int,
    faults: Sequence[Fault] = (),
    steps_per_second: float = 1.0,
) -> Outcome:
    """Train a fresh group, disturbed by `faults`; `steps_per_second` is what it does undisturbed."""
    with LearnerGroup(iql_config(settings, "sequential"), module_spec=MODULE_SPEC, client=client) as group:
        group.update_from_iterators(plan, num_iters=STEPS_PER_CALL)  # compiles
        chaos = Chaos(group, faults, steps_per_second)
        began = time.monotonic()
        chaos.start()
        for _ in range(num_steps // STEPS_PER_CALL - 1):
            group.update_from_iterators(plan, num_iters=STEPS_PER_CALL)
        seconds = time.monotonic() - began
        chaos.join(WAIT_SECONDS)
        speed = (num_steps - STEPS_PER_CALL) / seconds
        return Outcome(hash_weights(group.get_weights()), speed, chaos.lost)


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--steps-per-fault", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", choices=("on", "off"), default="off")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    num_steps = -(-options.faults * options.steps_per_fault // STEPS_PER_CALL) * STEPS_PER_CALL
    settings = LearnersConfig(
        num_learners=2,
        compile=options.compile,
        num_threads_per_learner=1,
        health_timeout_seconds=5,
        collective_timeout_seconds=10,
        max_restarts=2 * options.faults,
    )
    faults = schedule(options.faults, num_steps, options.seed, options.kinds)
    with tempfile.TemporaryDirectory() as folder, open_cluster(ClusterConfig(), num_workers=2) as client:
        path = Path(folder) / "data.zarr"
        write_dataset(path, DATASET_STEPS).close()
        plan = plan_feed(feed_config(path, 1, NUM_SHARDS, resident=True))
        calm = train(client, plan, settings, num_steps)
        stormy = train(client, plan, settings, num_steps, faults, calm.steps_per_second)
    equal = stormy.weights_hash == calm.weights_hash
    report = Report(f"chaos_compile_{options.compile}", (__doc__ or "").splitlines()[0])
    for kind in options.kinds:
        seconds = [seconds for fault, seconds in stormy.lost if fault.kind == kind]
        if seconds:
            report.samples[f"time lost to a {kind}, compile {options.compile}"] = Sample("s", tuple(seconds))
    kills = report.samples.get("time lost to a kill, compile off")
    if kills is not None and len(kills.values) >= MIN_REPEATS:
        report.gates.append(Gate("time lost to a SIGKILL", kills, MAX_KILL_SECONDS, "at most"))
    verdict = "equal" if equal else "NOT EQUAL"
    report.notes.append(f"{len(stormy.lost)} of {len(faults)} faults struck in {num_steps} steps")
    report.notes.append(f"weights {calm.weights_hash[:16]} and {stormy.weights_hash[:16]}: {verdict}")
    failed = report.finish()
    return int(failed or not equal or len(stormy.lost) != len(faults))


if __name__ == "__main__":
    sys.exit(main())
