"""How fast is an update? IQL against a plain torch loop of the same maths, in one process, with the same batches.

Gates: compiled at least 1.3 times as fast as the plain loop; not compiled, not slower than it.
"""

import itertools
import sys
import time
from collections.abc import Callable

from harness import Gate, Report, interleaved, parse_repeats
from plain_iql import PlainIQL
from problem import MODULE_SPEC, iql_config, random_batches

from dask_rl.learners.config import LearnersConfig
from dask_rl.learners.group import LearnerGroup

NUM_BATCHES, NUM_STEPS, NUM_CHECKED = 32, 200, 50
WARM_UP_STEPS = 20
MAX_DIFFERENCE = 1e-3


def open_group(compile_: str) -> LearnerGroup:
    return LearnerGroup(iql_config(LearnersConfig(compile=compile_)), module_spec=MODULE_SPEC)  # type: ignore[arg-type]


def check_same_maths(group: LearnerGroup) -> float:
    """Take the same steps with both, from the same weights; return the largest difference of any weight."""
    plain, batches = PlainIQL(), random_batches(NUM_CHECKED)
    plain.load(group.get_weights()["default_module"])
    group.update_from_iterators([batches], num_iters=NUM_CHECKED)
    for batch in batches:
        plain.step(batch)
    difference = plain.difference(group.get_weights()["default_module"])
    if not difference < MAX_DIFFERENCE:
        raise SystemExit(f"the loops differ: a weight by {difference:.3g} after {NUM_CHECKED} steps")
    return difference


def time_group(group: LearnerGroup) -> Callable[[], float]:
    batches = random_batches(NUM_BATCHES)
    group.update_from_iterators([batches], num_iters=WARM_UP_STEPS)

    def milliseconds() -> float:
        start = time.perf_counter()
        group.update_from_iterators([batches], num_iters=NUM_STEPS)
        return (time.perf_counter() - start) * 1e3 / NUM_STEPS

    return milliseconds


def time_plain() -> Callable[[], float]:
    plain, batches = PlainIQL(), itertools.cycle(random_batches(NUM_BATCHES))
    for batch in itertools.islice(batches, WARM_UP_STEPS):
        plain.step(batch)

    def milliseconds() -> float:
        start = time.perf_counter()
        for batch in itertools.islice(batches, NUM_STEPS):
            plain.step(batch)
        return (time.perf_counter() - start) * 1e3 / NUM_STEPS

    return milliseconds


def main() -> int:
    repeats = parse_repeats()
    report = Report("update_speed", "One IQL step: observation 17, action 6, 2 x 256, batch 256")
    with open_group("off") as off, open_group("on") as on:
        differences = [check_same_maths(group) for group in (off, on)]
        cases = {"plain torch": time_plain(), "compile off": time_group(off), "compile on": time_group(on)}
        samples = interleaved(cases, "ms/step", repeats)
    plain, eager, compiled = samples.values()
    report.samples = samples | {"speed, compile off": plain / eager, "speed, compile on": plain / compiled}
    report.gates = [
        Gate("compiled, against plain torch", plain / compiled, 1.3),
        Gate("not compiled, against plain torch", plain / eager, 1.0),
    ]
    report.notes.append(
        f"Same maths: after {NUM_CHECKED} steps no weight differs from the plain loop's by more than "
        f"{max(differences):.1e}."
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
