"""One self-contained HTML page about a run."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from dask_rl.pipeline.runs.run_directory import RunDirectory, damaged, dataset_facts, write_atomic

from .cli_command import as_text

Row = Mapping[str, Any]

_TEMPLATE = Path(__file__).with_name("report.html")
_BLUE, _ORANGE, _GREEN, _GREY = "#2563a8", "#d9782d", "#3a8f5c", "#8a8f98"
_SPLIT = (
    ("compute_seconds", "compute", _BLUE),
    ("collective_seconds", "collective", _ORANGE),
    ("data_wait_seconds", "data wait", _GREEN),
)
_LOSS_NAME = re.compile(r"(^|[/_])loss$")


def write_report(run: RunDirectory) -> Path:
    """Write `report.html` from the run's job and metrics; return its path.

    Raises:
        RunStateError: the directory is no run, or its metrics cannot be read.
    """
    run.require()
    rows = run.rows()
    job = _read_job(run.job_file)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["as_text"] = as_text
    page = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        name=run.name,
        summary=_summary(rows, job),
        figures=_figures(rows),
        dataset=_flat(next((_facts(row) for row in rows if row["kind"] == "dataset"), {})),
        evaluations=[row for row in rows if row["kind"] == "evaluation"],
        events=[(row["step"], row.get("name", ""), _facts(row, "name")) for row in rows if row["kind"] == "event"],
        job=_flat(job),
    )
    write_atomic(run.report_file, page)
    return run.report_file


def _read_job(file: Path) -> Row:
    """Return the job as it was written, by whatever version of dask-rl."""
    try:
        job = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        job = None
    if not isinstance(job, dict):
        raise damaged(file, "no job")
    return job


def _summary(rows: Sequence[Row], job: Row) -> list[tuple[str, str]]:
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    summary = [("Algorithm", _algorithms(job))]
    if train:
        summary.append(("Steps", f"{train[-1]['step']:,} of {job.get('num_steps', 0):,}"))
        rates = [row["steps_per_second"] for row in train if row.get("steps_per_second")]
        if rates:
            summary.append(("Steps per second", f"{sorted(rates)[len(rates) // 2]:,.0f} (median)"))
    if evaluations:
        last = evaluations[-1]
        summary.append(("Mean return", _plus_minus(last)))
        if last.get("normalized_score") is not None:
            summary.append(("Normalised score", f"{last['normalized_score']:.1f}"))
    return summary


def _algorithms(job: Row) -> str:
    """Return the algorithm's name; of several modules, each with its own."""
    name = str(job.get("algorithm", {}).get("name", "?"))
    datasets, own = job.get("dataset"), job.get("modules") or {}
    if not isinstance(datasets, Mapping):
        return name
    return ", ".join(f"{module_id}: {own.get(module_id, {}).get('name', name)}" for module_id in sorted(datasets))


def _figures(rows: Sequence[Row]) -> list[tuple[str, Markup]]:
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    figures = []
    if evaluations:
        data_return = dataset_facts(rows, evaluations[-1].get("module_id")).get("return_mean")
        figures.append(("Evaluation", _evaluation_figure(evaluations, data_return)))
    names = sorted({key for row in train for key, value in row.items() if _LOSS_NAME.search(key) and _number(value)})
    figures.extend((f"Learning curve: {name}", _curve_figure(train, name)) for name in names)
    if any(_number(row.get(key)) for row in train for key, _, _ in _SPLIT):
        figures.append(("Where the time goes", _throughput_figure(train)))
    return figures


def _evaluation_figure(rows: Sequence[Row], data_return: float | None) -> Markup:
    figure, axes = _axes("step", "mean return")
    rows = [row for row in rows if _number(row.get("return_mean"))]
    errors = [row.get("return_standard_error") or 0.0 for row in rows]
    steps, means = [row["step"] for row in rows], [row["return_mean"] for row in rows]
    axes.errorbar(steps, means, yerr=errors, fmt="o-", color=_BLUE, capsize=3, label="policy ± std. error")
    if data_return is not None:
        axes.axhline(data_return, color=_GREY, linestyle="--", label="mean of the data")
    axes.legend(frameon=False)
    return _svg(figure)


def _curve_figure(rows: Sequence[Row], name: str) -> Markup:
    figure, axes = _axes("step", name)
    points = [(row["step"], row[name]) for row in rows if _number(row.get(name))]
    axes.plot(*zip(*points, strict=True), color=_BLUE)
    return _svg(figure)


def _throughput_figure(rows: Sequence[Row]) -> Markup:
    """Draw each row's shares of compute, exchange and waiting, and the rate above them."""
    figure, axes = _axes("step", "share of time")
    split = [[float(row.get(key) or 0.0) for row in rows] for key, _, _ in _SPLIT]
    totals = [sum(parts) or 1.0 for parts in zip(*split, strict=True)]
    shares = [[value / total for value, total in zip(values, totals, strict=True)] for values in split]
    steps = [row["step"] for row in rows]
    labels, colors = [label for _, label, _ in _SPLIT], [color for _, _, color in _SPLIT]
    if len(rows) == 1:
        steps, shares = [0, steps[0]], [[share[0], share[0]] for share in shares]
    axes.stackplot(steps, *shares, labels=labels, colors=colors, alpha=0.8)
    axes.set_ylim(0, 1)
    axes.legend(loc="lower right")
    rates = [(row["step"], row["steps_per_second"]) for row in rows if _number(row.get("steps_per_second"))]
    if rates:
        right = axes.twinx()
        right.plot(*zip(*rates, strict=True), color="black", linewidth=1)
        right.set_ylabel("steps per second (line)")
        right.set_ylim(bottom=0)
    return _svg(figure)


def _axes(x_label: str, y_label: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def _svg(figure: Figure) -> Markup:
    """Return the figure as an SVG element without the XML head, whose DTD would be a link to the outside."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)
    text = buffer.getvalue()
    return Markup(text[text.index("<svg") :])


def _flat(values: Any, prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in values.items() if isinstance(values, Mapping) else ():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.extend(_flat(value, f"{name}."))
        else:
            flat.append((name, value))
    return flat


def _facts(row: Row, *without: str) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in {"version", "run", "step", "time", "kind", *without}}


def _plus_minus(row: Row) -> str:
    if row.get("return_mean") is None:
        return "not finite"
    error = row.get("return_standard_error")
    return f"{row['return_mean']:.1f}" + ("" if error is None else f" ± {error:.1f}")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
