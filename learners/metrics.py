"""What one update call reports."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        self._batch_sizes: dict[ModuleID, int] = {}
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

    def add_rows(self, module_id: ModuleID, rows: torch.Tensor | int, batch_size: int) -> None:
        """Add a step's rows that counted, beside the size of its batch."""
        self._rows[module_id] = self._rows[module_id] + rows
        self._batch_sizes[module_id] = batch_size

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
                "batch_size": self._batch_sizes[module_id],
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


class Lifetime:
    """Rows and steps that each module has been trained on, by all learners together; the same on all of them."""

    def __init__(self, module_ids: Sequence[ModuleID], device: torch.device) -> None:
        self._module_ids = list(module_ids)
        # on the device: reading the number of rows that counted would make every step wait for the GPU
        self._rows = torch.zeros(len(self._module_ids), dtype=torch.float64, device=device)
        self._steps = dict.fromkeys(self._module_ids, 0)

    def for_modules(self, module_ids: Sequence[ModuleID], device: torch.device) -> "Lifetime":
        """Return one for other modules; those that stay keep their counts."""
        other = Lifetime(module_ids, device)
        other.load_state_dict(self.state_dict())
        return other

    def add_step(self, module_ids: Iterable[ModuleID], rows: torch.Tensor) -> None:
        """Count a step of some modules, and the rows of all, (number of modules,)."""
        self._rows += rows
        for module_id in module_ids:
            self._steps[module_id] += 1

    def state_dict(self) -> dict[ModuleID, dict[str, int]]:
        """Return num_rows and num_steps by module id."""
        rows = self._rows.tolist()
        return {
            module_id: {"num_rows": int(count), "num_steps": self._steps[module_id]}
            for module_id, count in zip(self._module_ids, rows, strict=True)
        }

    def load_state_dict(self, state: Mapping[ModuleID, Mapping[str, int]]) -> None:
        """Take over the counts of the modules that are known here."""
        for index, module_id in enumerate(self._module_ids):
            if module_id in state:
                self._rows[index] = int(state[module_id]["num_rows"])
                self._steps[module_id] = int(state[module_id]["num_steps"])

    def to_list(self) -> list[int]:
        """Return all counts, to be sent to learners of the same modules."""
        return [count for counts in self.state_dict().values() for count in (counts["num_rows"], counts["num_steps"])]

    def load_list(self, counts: Sequence[int]) -> None:
        """Take over `to_list` of another."""
        self.load_state_dict(
            {
                module_id: {"num_rows": counts[2 * index], "num_steps": counts[2 * index + 1]}
                for index, module_id in enumerate(self._module_ids)
            }
        )


class OpenCall:
    """An update call under way on a learner; it outlives a failure, so that its result covers the whole call."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.metrics = CallMetrics()
        self.is_announced = False
        """Whether the hook before it has run."""


def merge_results(results: list[Result]) -> Result:
    """Return the group's view: losses as means over all learners' rows, times as the slowest learner's.

    What all learners know alike is taken from the one with the most steps: one that came in later may know less.
    """
    everything = [result["all_modules"] for result in results]
    most = max(part["num_steps"] for part in everything)
    fullest = [index for index, part in enumerate(everything) if part["num_steps"] == most]
    merged: Result = {}
    for module_id in sorted({key for result in results for key in result} - {"all_modules", STATE_KEY}):
        by_steps = sorted(range(len(results)), key=lambda index: -everything[index]["num_steps"])
        parts = [results[index][module_id] for index in by_steps if module_id in results[index]]
        merged[module_id] = parts[0] | {key: _mean(key, parts) for key in parts[0] if key.endswith("_loss")}
        for key in ("num_rows", "batch_size"):
            merged[module_id][key] = sum(part[key] for part in parts)
    merged["all_modules"] = dict(everything[fullest[0]])
    for key in ("seconds", "seconds_waiting", "seconds_computing", "seconds_exchanging"):
        merged["all_modules"][key] = max(part[key] for part in everything)
    merged["all_modules"]["steps_per_second"] = min(everything[index]["steps_per_second"] for index in fullest)
    return merged


def _mean(key: str, parts: Sequence[Mapping[str, Any]]) -> float:
    known = [part for part in parts if key in part]
    total: float = sum(part[key] * part["num_rows"] for part in known)
    return total / max(sum(part["num_rows"] for part in known), 1)
