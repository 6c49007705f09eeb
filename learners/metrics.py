"""What one update call reports."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from .batch import ModuleID

Result = dict[str, dict[str, Any]]
"""Metrics by module id, under "all_modules" those of the whole learner; weights under STATE_KEY where asked for."""

STATE_KEY = "_rl_module_state_after_update"


class CallMetrics:
    """Collects the metrics of one update call; losses stay on the device until the end."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._losses: dict[ModuleID, dict[str, torch.Tensor]] = defaultdict(dict)
        self._rows: dict[ModuleID, torch.Tensor | float] = defaultdict(float)
        self._seconds: dict[str, float] = {"waiting": 0.0, "computing": 0.0, "exchanging": 0.0}
        self.num_steps = 0
        self.num_skipped_steps = 0
        self.num_skipped_module_steps = 0
        """Steps of single modules that were left out because some learner had no row of theirs."""

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time spent inside to `waiting`, `computing` or `exchanging`; exchanging lies inside computing."""
        start = time.perf_counter()
        yield
        self._seconds[what] += time.perf_counter() - start

    def add_losses(self, module_id: ModuleID, losses: Mapping[str, torch.Tensor]) -> None:
        """Add sums over rows."""
        mine = self._losses[module_id]
        for name, loss in losses.items():
            mine[name] = mine[name] + loss if name in mine else loss.clone()

    def add_rows(self, module_id: ModuleID, rows: torch.Tensor | int) -> None:
        """Add to the rows that counted."""
        self._rows[module_id] = self._rows[module_id] + rows

    def result(self, per_module: Mapping[ModuleID, Mapping[str, Any]], learner: Mapping[str, Any]) -> Result:
        """Return means over the call's rows, beside what the learner knows by itself."""
        seconds = time.perf_counter() - self._started
        out: Result = {}
        for module_id in sorted(self._rows):
            rows = float(self._rows[module_id])
            losses = {name: float(value) / max(rows, 1.0) for name, value in self._losses[module_id].items()}
            out[module_id] = {
                "total_loss": sum(losses.values()),
                **losses,
                "num_rows": int(rows),
                **per_module.get(module_id, {}),
            }
        out["all_modules"] = {
            **learner,
            "num_steps": self.num_steps,
            "num_skipped_steps": self.num_skipped_steps,
            "num_skipped_module_steps": self.num_skipped_module_steps,
            "seconds": seconds,
            "steps_per_second": self.num_steps / seconds if seconds > 0 else 0.0,
            "seconds_waiting": self._seconds["waiting"],
            "seconds_computing": self._seconds["computing"] - self._seconds["exchanging"],
            "seconds_exchanging": self._seconds["exchanging"],
        }
        return out


class OpenCall:
    """An update call under way on a learner; it outlives a failure, so that its result covers the whole call."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.metrics = CallMetrics()
        self.is_announced = False
        """Whether the hook before it has run."""


def merge_results(results: list[Result]) -> Result:
    """Return the group's view: losses as means over all learners' rows, times as the slowest learner's."""
    merged: Result = {}
    for module_id in sorted({key for result in results for key in result} - {"all_modules", STATE_KEY}):
        parts = [result[module_id] for result in results if module_id in result]
        rows = sum(part["num_rows"] for part in parts)
        merged[module_id] = {
            key: sum(part[key] * part["num_rows"] for part in parts) / max(rows, 1)
            if key.endswith("_loss")
            else parts[0][key]
            for key in parts[0]
        } | {"num_rows": rows}
    parts = [result["all_modules"] for result in results]
    merged["all_modules"] = dict(parts[0])
    for key in ("seconds", "seconds_waiting", "seconds_computing", "seconds_exchanging"):
        merged["all_modules"][key] = max(part[key] for part in parts)
    merged["all_modules"]["steps_per_second"] = min(part["steps_per_second"] for part in parts)
    return merged
