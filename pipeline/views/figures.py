"""Figures of reports: inline SVG with labelled axes, and colours that stay apart for everybody."""

import io
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from dask_rl.pipeline.runs.run_log import Row

BLUE, ORANGE, GREEN, GREY = "#2563a8", "#d9782d", "#3a8f5c", "#8a8f98"
_LOSS_NAME = re.compile(r"(^|[/_])loss$")


def make_axes(x_label: str, y_label: str) -> tuple[Figure, Any]:
    """Return a figure and its axes; every axis has a name."""
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def as_svg(figure: Figure) -> Markup:
    """Return the figure as an SVG element without the XML head, whose DTD would be a link to the outside."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in letters that the font lacks
        FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)
    text = buffer.getvalue()
    return Markup(text[text.index("<svg") :])


def loss_names(rows: Iterable[Row]) -> list[str]:
    """Return the names of the losses that have a number in some row, sorted."""
    return sorted({key for row in rows for key, value in row.items() if _LOSS_NAME.search(key) and is_number(value)})


def points(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    """Return the steps at which a metric is a number, and those numbers."""
    found = [(row["step"], row[name]) for row in rows if is_number(row.get(name))]
    return [step for step, _ in found], [value for _, value in found]


def is_number(value: Any) -> bool:
    """Whether a value of a row can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool)
