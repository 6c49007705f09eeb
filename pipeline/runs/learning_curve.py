"""Rows of the learning curve: the metrics of a call, flat; those of a single module go without its id."""

from collections.abc import Mapping
from typing import Any

from dask_rl.learners.batch import ModuleID
from dask_rl.learners.metrics import Result

_LOSS = "total_loss"


def curve_row(merged: Result, epochs: Mapping[ModuleID, float]) -> dict[str, Any]:
    """Flatten the group's merged result.

    Args:
        merged: metrics by module id, and "all_modules".
        epochs: passes over each module's dataset.
    """
    learner = merged["all_modules"]
    modules = {module_id: metrics for module_id, metrics in merged.items() if module_id != "all_modules"}
    row: dict[str, Any] = {}
    for module_id, metrics in modules.items():
        prefix = "" if len(epochs) == 1 else f"{module_id}/"
        row |= {f"{prefix}{name}": value for name, value in metrics.items()}
        row[f"{prefix}epoch"] = epochs[module_id]
    return row | {
        "steps_per_second": learner["steps_per_second"],
        "compute_seconds": learner["seconds_computing"],
        "collective_seconds": learner["seconds_exchanging"],
        "data_wait_seconds": learner["seconds_waiting"],
        "num_skipped_steps": learner["num_skipped_steps_lifetime"],
    }


def losses_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the losses of a row to show: `loss`, or `ID loss` for each of several modules."""
    return {
        f"{name.removesuffix(_LOSS).removesuffix('/')} loss".strip(): value
        for name, value in row.items()
        if value is not None and (name == _LOSS or name.endswith(f"/{_LOSS}"))
    }
