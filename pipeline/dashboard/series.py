"""What the charts draw, as columns of numbers: taken from runs and groups, without Bokeh."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .checks import number
from .group_record import GroupRecord
from .learner_record import PARTS
from .run_record import RunRecord

MAX_POINTS = 500
"""Of a line; more cannot be told apart on a screen."""
MAX_LINES = 8
MAX_BARS = 32
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c8c")
"""Okabe and Ito (2008): told apart by the colour-blind too."""
_DASHES = ("solid", "dashed", "dotted", "dotdash")

Columns = dict[str, list[Any]]


def losses(run: RunRecord | None) -> Columns:
    """Return the loss curves of each module over the steps; the total one not beside the only one that it has."""
    rows = [] if run is None else spread(run.train_rows)
    lines = {}
    names = run.losses() if run else []
    for name in names[1:] if len(names) == 2 and names[0] == "total_loss" else names[:MAX_LINES]:
        points = [(row["step"], value) for row in rows if (value := number(row.get(name))) is not None]
        lines[name.removesuffix("/total_loss").replace("_", " ")] = points
    return _lines(lines)


def rates(run: RunRecord | None, group: GroupRecord | None, now: float) -> Columns:
    """Return steps per second over the minutes up to now (negative): of each learner, or of the run that has none.

    With many learners it is the slowest, the median and the fastest.
    """
    samples = [] if group is None else spread(list(group.rates))
    if samples:
        return _lines(_of_learners([((moment - now) / 60, by_rank) for moment, by_rank in samples]))
    rows = [] if run is None else spread(run.train_rows)
    times = [number(row.get("time")) for row in rows]
    newest = max((moment for moment in times if moment is not None), default=0.0)
    points = [
        ((moment - newest) / 60, rate)
        for moment, row in zip(times, rows, strict=True)
        if moment is not None and (rate := number(row.get("steps_per_second"))) is not None
    ]
    return _lines({"run": points} if points else {})


def _of_learners(samples: Sequence[tuple[float, Mapping[int, float]]]) -> dict[str, list[tuple[float, float]]]:
    ranks = sorted({rank for _, by_rank in samples for rank in by_rank})
    if len(ranks) <= MAX_LINES:
        return {f"learner {rank}": [(x, by_rank.get(rank, math.nan)) for x, by_rank in samples] for rank in ranks}
    ordered = [(x, sorted(by_rank.values())) for x, by_rank in samples if by_rank]
    places = {"slowest": 0.0, "median": 0.5, "fastest": 1.0}
    return {
        name: [(x, values[round(place * (len(values) - 1))]) for x, values in ordered] for name, place in places.items()
    }


def shares(run: RunRecord | None, group: GroupRecord | None) -> Columns:
    """Return the percentages of time that learners spend on each part, and on none; of a run that has none, its own.

    Of many learners those that wait longest for data.
    """
    learners = [] if group is None else [each for each in group.learners.values() if each.rank >= 0]
    if len(learners) > MAX_BARS:
        learners = sorted(learners, key=lambda each: -each.shares["data_wait_seconds"])[:MAX_BARS]
    found = {each.rank: each.shares for each in sorted(learners, key=lambda each: each.rank)}
    named = {str(rank): parts for rank, parts in found.items()}
    if not named and run is not None and run.latest:
        seconds = {part: max(0.0, number(run.latest.get(part)) or 0.0) for part in PARTS}
        total = sum(seconds.values()) or 1.0
        named = {"last steps": {part: value / total for part, value in seconds.items()}}
    columns: Columns = {"learner": list(named)}
    for part in PARTS:
        columns[part] = [100 * parts[part] for parts in named.values()]
    columns["other"] = [max(0.0, 100 - 100 * sum(parts.values())) for parts in named.values()]
    return columns


def evaluations(run: RunRecord | None) -> Columns:
    """Return mean returns over the steps with one standard error to each side, by module where there are several."""
    rows = [] if run is None else run.evaluation_rows[-MAX_POINTS:]
    modules = sorted({str(row.get("module_id", "")) for row in rows})
    columns: Columns = {name: [] for name in ("step", "mean", "lower", "upper", "label", "colour")}
    for row in rows:
        step, mean = number(row.get("step")), number(row.get("return_mean"))
        if step is None or mean is None:
            continue
        module, error = str(row.get("module_id", "")), number(row.get("return_standard_error")) or 0.0
        values = (step, mean, mean - error, mean + error, module or "mean return ± standard error")
        colour = _COLOURS[modules.index(module) % len(_COLOURS)]
        for name, value in zip(columns, (*values, colour), strict=True):
            columns[name].append(value)
    return columns


def spread(items: Sequence[Any]) -> Sequence[Any]:
    """Return at most MAX_POINTS of the items, evenly spread, with the first and the last."""
    if len(items) <= MAX_POINTS:
        return items
    last = len(items) - 1
    return [items[round(place * last / (MAX_POINTS - 1))] for place in range(MAX_POINTS)]


def _lines(lines: Mapping[str, Sequence[tuple[float, float]]]) -> Columns:
    kept = {label: points for label, points in lines.items() if points}
    return {
        "xs": [[x for x, _ in points] for points in kept.values()],
        "ys": [[y for _, y in points] for points in kept.values()],
        "label": list(kept),
        "colour": [_COLOURS[index % len(_COLOURS)] for index in range(len(kept))],
        "dash": [_DASHES[index // 2 % len(_DASHES)] for index in range(len(kept))],
    }
