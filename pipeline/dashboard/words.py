"""What the page says of a run in words: HTML, in which everything that came in a message is escaped."""

from collections.abc import Mapping
from html import escape
from typing import Any

from .checks import number, text
from .live_runs import Entry
from .run_record import RunRecord

STYLE = """
.bk-clearfix { width: 100%; }
:host { font: 16px/1.45 Helvetica, Arial, sans-serif; color: #1a1a1a; }
h2 { font-size: 18px; margin: 4px 0 6px; }
table { border-collapse: collapse; width: 100%; font-size: 15px; background: #fff; }
th { text-align: left; font-weight: 600; color: #444; border-bottom: 2px solid #999; padding: 4px 12px 4px 6px; }
td { border-bottom: 1px solid #ddd; padding: 4px 12px 4px 6px; vertical-align: top; white-space: nowrap; }
.wide { width: 70%; } td.wide { white-space: normal; overflow-wrap: anywhere; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
.scroll { max-height: 330px; overflow-y: auto; background: #fff; border: 1px solid #ddd; }
.scroll th { position: sticky; top: 0; background: #fff; }
.chip { display: inline-block; padding: 0 9px; border-radius: 10px; font-size: 14px; font-weight: 600;
        white-space: nowrap; border: 1px solid transparent; }
.good { background: #d7ecf9; color: #003b5c; } .calm { background: #ececec; color: #333; }
.busy { background: #fdebc8; color: #5c3b00; } .bad { background: #b33c00; color: #fff; }
.name { font-size: 22px; font-weight: 600; margin-right: 8px; }
.fact { display: inline-block; margin-right: 22px; } .fact b { font-size: 19px; font-weight: 600; }
.track { height: 8px; background: #e4e4e4; border-radius: 4px; margin: 6px 0; }
.track div { height: 8px; background: #0072b2; border-radius: 4px; }
.empty { color: #555; } .lost td { background: #fdf3ee; } .muted { color: #555; font-size: 14px; }
"""
NOTHING_YET = (
    "<h2>No learners on this cluster yet</h2><p class='empty'>When a run begins with this cluster's client, as with "
    "<code>dask-rl train JOB.yaml</code>, this page shows its losses, the speed and the state of each learner, where "
    "its time goes, evaluations, and whatever befalls it.</p>"
)
_CHIPS = {
    "good": ("running", "updating", "ready", "complete", "in collective", "waiting for data", "running a function"),
    "busy": ("starting", "evaluating", "saving", "paused", "suspect"),
    "bad": ("lost", "dead", "failed"),
}


def chip(status: str) -> str:
    """Return a status with its colour."""
    kind = next((kind for kind, names in _CHIPS.items() if status in names), "calm")
    return f"<span class='chip {kind}'>{escape(status)}</span>"


def duration(seconds: float) -> str:
    """Return a time for people: 8 s, 3 min 20 s, 2 h 05 min."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def heading(entry: Entry, now: float) -> str:
    """Return name, status and progress of what is shown."""
    run, group = entry.run, entry.group
    if run is None:
        count = len(group.learners) if group else 0
        learners = f"{count} learner{'' if count == 1 else 's'}, driven by hand"
        status = "running" if group and group.is_alive else "ended"
        return f"<span class='name'>{escape(entry.name)}</span>{chip(status)} <span class='muted'>{learners}</span>"
    done = min(1.0, run.step / run.num_steps) if run.num_steps > 0 else 0.0
    reason = f" <span class='muted'>{escape(run.reason)}</span>" if run.reason else ""
    facts = [f"step <b>{run.step:,}</b> of {run.num_steps:,} ({done:.0%})", *_data(run)]
    rate = number(run.latest.get("steps_per_second"))
    if rate is not None:
        facts.append(f"<b>{rate:,.1f}</b> steps/s")
    facts.append(f"for <b>{duration((run.heard if run.status_at(now) != 'running' else now) - run.began)}</b>")
    place = f"{run.path} — process {run.pid} on {run.host}"
    return (
        f"<span class='name'>{escape(run.name)}</span>{chip(run.status_at(now))}{reason}"
        f"<div class='track'><div style='width:{100 * done:.1f}%'></div></div>"
        f"{''.join(f'<span class=fact>{fact}</span>' for fact in facts)}<div class='muted'>{escape(place)}</div>"
    )


def _data(run: RunRecord) -> list[str]:
    """Return the position in each dataset."""
    found = []
    for module_id, facts in list(run.datasets.items())[:8]:
        path = text(facts.get("path")).rstrip("/").rpartition("/")[2] or "dataset"
        rows = number(facts.get("num_transitions"))
        size = f" ({rows:,.0f} transitions)" if rows is not None else ""
        epoch = run.epochs.get(module_id)
        position = "" if epoch is None else f"epoch <b>{epoch:,.2f}</b> of "
        named = f"{escape(module_id)}: " if module_id else ""
        found.append(f"{named}{position}{escape(path)}{size}")
    return found


def sentence(row: Mapping[str, Any]) -> str:
    """Return an event in words; one of a name that is not known, with its details."""
    seconds, size = number(row.get("seconds")) or 0.0, row.get("num_learners")
    sentences = {
        "learner_lost": f"learner {row.get('learner')} was lost: {row.get('cause') or 'for no known cause'}",
        "rejoined": f"{size} learners go on after {seconds:.1f} s, in generation {row.get('generation')}",
        "resized": f"{size} learners go on after {seconds:.1f} s, in generation {row.get('generation')}",
        "restarted": f"all learners were lost: {size} new ones after {seconds:.1f} s",
        "resumed": "the run goes on from its last checkpoint",
        "logger_failed": f"{row.get('logger')} hears nothing of the run any more: {row.get('cause')}",
    }
    name = str(row.get("name"))
    shown = {key: value for key, value in row.items() if key not in ("version", "run", "step", "time", "kind", "name")}
    return text(sentences.get(name) or " ".join([name, *(f"{key}={value}" for key, value in shown.items())]))
