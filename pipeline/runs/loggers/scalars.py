"""What of a row is a point of a curve, and its name at the trackers."""

from collections.abc import Mapping
from typing import Any

_OF_THE_ROW = {"version", "run", "step", "time", "kind", "num_episodes"}


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row by `train/NAME` or `evaluation/NAME`; none of rows of other kinds.

    Of several modules the name has the id before it: `train/ID/total_loss`, `evaluation/ID/return_mean`.
    """
    if row["kind"] not in ("train", "evaluation"):
        return {}
    module_id = row.get("module_id")
    prefix = row["kind"] if module_id is None else f"{row['kind']}/{module_id}"
    numbers = {name: value for name, value in row.items() if name not in _OF_THE_ROW and _is_number(value)}
    return {f"{prefix}/{name}": float(value) for name, value in sorted(numbers.items())}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
