"""RunRecord: what is known of one run, from its own messages."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from .checks import MAX_ITEMS, integer, mapping, number, path, plain, text, texts
from .thinned import Thinned

MAX_TRAIN_ROWS, MAX_EVALUATION_ROWS, MAX_EVENT_ROWS, MAX_OTHER_ROWS = 5000, 1000, 500, 20
LOST_AFTER_SECONDS = 20.0
"""A run that says nothing for so long has lost its driver."""
STATUSES = ("running", "paused", "evaluating", "saving", "complete", "interrupted", "failed")
ENDED = ("complete", "interrupted", "failed", "lost")
_NUMBERED = tuple[int, dict[str, Any]]


class RunRecord:
    """One start of a run. Times named `now` are of one clock, the listener's; those in rows are the run's own."""

    def __init__(self, message: Mapping[str, Any], now: float) -> None:
        self.run_id = text(message.get("run_id"))
        self.began = self.heard = now
        self.status, self.reason = "running", ""
        self._step = 0
        self.begin(message, now)

    def begin(self, message: Mapping[str, Any], now: float) -> None:
        """Take in what the run is, and its rows so far in place of those that came before."""
        self.heard = now
        self.name = text(message.get("name"), "run") or "run"
        self.group_id = text(message.get("group_id"))
        self.path, self.host = path(message.get("path")), text(message.get("host"))
        self.pid, self.num_steps = integer(message.get("pid")), integer(message.get("num_steps"))
        self.modules = texts(message.get("modules"))
        self.job: dict[str, Any] = plain(mapping(message.get("job")))
        self.time = number(message.get("time"))
        """When it began, in seconds since the epoch, by its own clock."""
        self.num_rows = self._step = 0
        self._train: Thinned[_NUMBERED] = Thinned(MAX_TRAIN_ROWS)
        self._evaluations: Thinned[_NUMBERED] = Thinned(MAX_EVALUATION_ROWS)
        self._events: deque[_NUMBERED] = deque(maxlen=MAX_EVENT_ROWS)
        self._others: deque[_NUMBERED] = deque(maxlen=MAX_OTHER_ROWS)
        rows = message.get("rows")
        for row in rows if isinstance(rows, list | tuple) else ():
            self.add_row(row, now)

    def add_row(self, row: object, now: float) -> dict[str, Any] | None:
        """Take in a row of metrics.jsonl and return it; None where it is no row."""
        self.heard = now
        kept: dict[str, Any] = plain(mapping(row))
        kind = kept.get("kind")
        if not isinstance(kind, str) or number(kept.get("step")) is None:
            return None
        self.num_rows += 1
        kinds: dict[str, Any] = {"train": self._train.add, "evaluation": self._evaluations.add}
        kinds["event"] = self._events.append
        kinds.get(kind, self._others.append)((self.num_rows, kept))
        if kind != "event":
            self._step = max(self._step, integer(kept["step"]))
        return kept

    def set_status(self, message: Mapping[str, Any], now: float) -> None:
        """Take in what the run is doing."""
        status = text(message.get("status"))
        if status in STATUSES:
            self.status, self.reason = status, text(message.get("reason"))
        self.hear_alive(message, now)

    def hear_alive(self, message: Mapping[str, Any], now: float) -> None:
        """Take in that its driver lives, and the step that it is at."""
        self.heard = now
        self._step = max(self._step, integer(message.get("step")))

    def status_at(self, now: float) -> str:
        """Return its status, `lost` where its driver says nothing any more."""
        if self.status in ENDED or now - self.heard <= LOST_AFTER_SECONDS:
            return self.status
        return "lost"

    @property
    def step(self) -> int:
        """Gradient steps done."""
        return self._step

    @property
    def train_rows(self) -> list[dict[str, Any]]:
        """Rows of kind train, thinned."""
        return [row for _, row in self._train]

    @property
    def evaluation_rows(self) -> list[dict[str, Any]]:
        """Rows of kind evaluation."""
        return [row for _, row in self._evaluations]

    @property
    def event_rows(self) -> list[dict[str, Any]]:
        """Rows of kind event, the newest ones."""
        return [row for _, row in self._events]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows that are kept, in their order."""
        numbered = [*self._train, *self._evaluations, *self._events, *self._others]
        return [row for _, row in sorted(numbered, key=lambda each: each[0])]

    @property
    def latest(self) -> dict[str, Any]:
        """The newest train row; empty before there is one."""
        newest = self._train.latest()
        return newest[1] if newest else {}

    @property
    def datasets(self) -> dict[str, dict[str, Any]]:
        """Facts of each dataset by module id, "" where there is only one."""
        rows = [row for _, row in self._others if row["kind"] == "dataset"]
        if not rows:
            return {}
        modules = rows[-1].get("modules")
        several = mapping(modules) or {"": rows[-1]}
        return {module_id: dict(mapping(facts)) for module_id, facts in list(several.items())[:MAX_ITEMS]}

    @property
    def epochs(self) -> dict[str, float]:
        """Passes over each dataset so far, by module id."""
        found = {name: number(value) for name, value in self.latest.items() if name.split("/")[-1] == "epoch"}
        return {name[: -len("epoch")].rstrip("/"): value for name, value in found.items() if value is not None}

    def losses(self) -> list[str]:
        """Return the names of what is drawn: every loss of a single module, the total losses of several."""
        names = [name for name, value in self.latest.items() if name.endswith("_loss") and number(value) is not None]
        totals = [name for name in names if name.endswith("/total_loss")]
        return totals or sorted(names, key=lambda name: (name != "total_loss", name))

    def summary(self, now: float) -> dict[str, Any]:
        """Return JSON values: all but the rows."""
        evaluation = self._evaluations.latest()
        return {
            "run_id": self.run_id,
            "group_id": self.group_id,
            "name": self.name,
            "path": self.path,
            "host": self.host,
            "pid": self.pid,
            "status": self.status_at(now),
            "reason": self.reason,
            "time": self.time,
            "step": self.step,
            "num_steps": self.num_steps,
            "modules": self.modules,
            "job": self.job,
            "epochs": self.epochs,
            "datasets": self.datasets,
            "seconds_since_begin": now - self.began,
            "seconds_since_message": now - self.heard,
            "num_rows": self.num_rows,
            "last_train": self.latest or None,
            "last_evaluation": evaluation[1] if evaluation else None,
            "events": self.event_rows,
        }
