"""The learning curves of a run as a figure."""

import io
import re
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dask_rl.pipeline.runs.run_log import Row

_LOSS_NAME = re.compile(r"(^|[/_])loss$")


class Curves(Figure):
    """A figure that notebooks show without pyplot, whose state is one for the whole process."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def draw_curves(name: str, rows: Sequence[Row]) -> Curves:
    """Return losses over the gradient steps and, where there are evaluations, their mean returns.

    Args:
        name: the run's, for the title.
        rows: of its metrics.jsonl.
    """
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    figure = Curves(figsize=(10 if evaluations else 6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2 if evaluations else 1, squeeze=False)[0]
    figure.suptitle(name, parse_math=False)
    _draw_losses(axes[0], train)
    if evaluations:
        _draw_returns(axes[1], evaluations)
    return figure


def _draw_losses(axes: Any, rows: Sequence[Row]) -> None:
    names = sorted({key for row in rows for key in row if _LOSS_NAME.search(key)})
    for loss in names:
        points = [(row["step"], row[loss]) for row in rows if row.get(loss) is not None]
        axes.plot([step for step, _ in points], [value for _, value in points], label=loss)
    axes.set(xlabel="gradient steps", ylabel="loss")
    if names:
        axes.legend()


def _draw_returns(axes: Any, rows: Sequence[Row]) -> None:
    steps = [row["step"] for row in rows]
    errors = [row.get("return_standard_error") or 0.0 for row in rows]
    axes.errorbar(steps, [row["return_mean"] for row in rows], yerr=errors, marker="o", capsize=3)
    axes.set(xlabel="gradient steps", ylabel=f"mean return ({rows[-1].get('environment', 'environment')})")
