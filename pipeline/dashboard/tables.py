"""The page's tables: HTML, in which everything that came in a message is escaped."""

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .checks import number
from .group_record import WORKER_LEFT, GroupRecord
from .learner_record import LearnerRecord
from .live_runs import Entry
from .run_record import RunRecord
from .words import chip, duration, sentence

MAX_SHOWN_EVENTS = MAX_SHOWN_LEARNERS = 100
_Columns = Sequence[tuple[str, str]]
"""Class and title of each."""
_LEARNERS: _Columns = (
    ("number", "rank"),
    ("", "state"),
    ("number", "generation"),
    ("number", "step"),
    ("number", "steps/s"),
    ("wide", "last error, or why it was lost"),
    ("", "worker"),
)
_EVENTS: _Columns = (("number", "time (UTC)"), ("number", "step"), ("wide", "what happened"))
_RUNS: _Columns = (
    ("", "run"),
    ("", "status"),
    ("number", "step"),
    ("number", "steps/s"),
    ("number", "learners"),
    ("number", "lost"),
)
_NO_LEARNERS = (
    "The learners on this cluster's workers appear here with their state, speed and last error. A learner in the "
    "process of the run itself (num_learners: 0) does not."
)
_NO_EVENTS = (
    "Nothing so far. A learner that is lost, the repair and its time, a run that goes on from a checkpoint: each gets "
    "a line here."
)


def health_table(group: GroupRecord | None, now: float) -> str:
    """Return the learners, and those that were lost."""
    rows = [] if group is None else group.rows()
    lines = [("lost" if each.is_lost else "", _health(each, now)) for each in rows[:MAX_SHOWN_LEARNERS]]
    if rows and group is not None and not group.is_alive:
        lines.insert(0, ("", ["–", chip("ended"), "–", "–", "–", "the learners of this group have been let go", "–"]))
    more = f"<p class=muted>and {len(rows) - MAX_SHOWN_LEARNERS} more</p>" if len(rows) > MAX_SHOWN_LEARNERS else ""
    return _titled("Learners", "learners", _LEARNERS, lines, _NO_LEARNERS) + more


def _health(each: LearnerRecord, now: float) -> list[str]:
    ago = f" <span class=muted>{duration(now - each.since)}{' ago' if each.is_lost else ''}</span>"
    return [
        f"{each.rank}" if each.rank >= 0 else "–",
        chip(each.state) + ago,
        f"{each.generation}",
        f"{each.step:,}",
        "–" if each.is_lost else f"{each.steps_per_second:,.1f}",
        escape(each.cause if each.is_lost else each.last_error) or "–",
        escape(each.address),
    ]


def event_log(run: RunRecord | None, group: GroupRecord | None, now: float, wall: float) -> str:
    """Return what befell a run, the newest first: in its own words, before it has said any in those of the scheduler.

    `wall` is the time in seconds since the epoch.
    """
    rows = [] if run is None else run.event_rows[-MAX_SHOWN_EVENTS:]
    lines = [("", [_clock(row.get("time")), _step(row), escape(sentence(row))]) for row in reversed(rows)]
    unsaid = [each for each in group.lost if each.cause == WORKER_LEFT] if group else []
    for each in unsaid:
        what = f"learner {each.rank} was lost: {each.cause}" if each.rank >= 0 else f"a learner was lost: {each.cause}"
        lines.insert(0, ("", [_clock(wall - (now - each.since)), f"{each.step:,}", escape(what)]))
    return _titled("Restarts and faults", "events", _EVENTS, lines, _NO_EVENTS)


def _clock(value: object) -> str:
    moment = number(value)
    if moment is None or not 0 <= moment < 2**35:
        return "–"
    return time.strftime("%H:%M:%S", time.gmtime(moment))


def _step(row: Mapping[str, Any]) -> str:
    step = number(row.get("step"))
    return "–" if step is None else f"{step:,.0f}"


def overview(entries: Iterable[Entry], now: float) -> str:
    """Return all runs and groups."""
    lines = [("", _overview_line(entry, now)) for entry in entries]
    return _titled("All runs on this cluster", "runs", _RUNS, lines, "")


def _overview_line(entry: Entry, now: float) -> list[str]:
    run, group = entry.run, entry.group
    status = run.status_at(now) if run else "running" if group and group.is_alive else "ended"
    rates = [each.steps_per_second for each in group.learners.values()] if group else []
    return [
        escape(entry.name),
        chip(status),
        f"{run.step:,} of {run.num_steps:,}" if run else "–",
        f"{min(rates):,.1f}" if rates else "–",
        f"{len(rates)}" if group else "–",
        f"{group.num_lost}" if group else "–",
    ]


def _titled(title: str, id_: str, columns: _Columns, lines: Sequence[tuple[str, Sequence[str]]], empty: str) -> str:
    if not lines:
        return f"<h2>{title}</h2><p class=empty>{empty}</p>"
    head = "".join(f"<th class='{kind}'>{name}</th>" for kind, name in columns)
    body = "".join(f"<tr class='{kind}'>{_cells(columns, cells)}</tr>" for kind, cells in lines)
    return f"<h2>{title}</h2><table id={id_}><tr>{head}</tr>{body}</table>"


def _cells(columns: _Columns, cells: Sequence[str]) -> str:
    return "".join(f"<td class='{kind}'>{cell}</td>" for (kind, _), cell in zip(columns, cells, strict=True))
