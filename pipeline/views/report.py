"""One self-contained HTML page about a run."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from dask_rl.pipeline.runs.run_directory import RunDirectory, dataset_facts, write_atomic
from dask_rl.pipeline.runs.run_log import Row

from .figures import BLUE, GREEN, GREY, ORANGE, as_svg, is_number, loss_names, make_axes, points
from .report_page import algorithms, facts, flatten, median_rate, plus_minus, read_job, render

_SPLIT = (
    ("compute_seconds", "compute", BLUE),
    ("collective_seconds", "collective", ORANGE),
    ("data_wait_seconds", "data wait", GREEN),
)


def write_report(run: RunDirectory, output: Path | None = None) -> Path:
    """Write a page from the run's job and metrics; return its path.

    Args:
        run: the run.
        output: the page; default: `report.html` in the run's directory.

    Raises:
        RunStateError: the directory is no run, or its metrics cannot be read.
    """
    run.require()
    rows = run.rows()
    job = read_job(run.job_file)
    page = render(
        "report.html",
        name=run.name,
        summary=_summary(rows, job),
        figures=_figures(rows),
        dataset=flatten(next((facts(row) for row in rows if row["kind"] == "dataset"), {})),
        evaluations=[row for row in rows if row["kind"] == "evaluation"],
        events=[(row["step"], row.get("name", ""), facts(row, "name")) for row in rows if row["kind"] == "event"],
        job=flatten(job),
    )
    path = output or run.report_file
    write_atomic(path, page)
    return path


def _summary(rows: Sequence[Row], job: Row) -> list[tuple[str, str]]:
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    summary = [("Algorithm", algorithms(job))]
    if train:
        summary.append(("Steps", f"{train[-1]['step']:,} of {job.get('num_steps', 0):,}"))
        rate = median_rate(train)
        if rate is not None:
            summary.append(("Steps per second", f"{rate:,.0f} (median)"))
    if evaluations:
        last = evaluations[-1]
        summary.append(("Mean return", plus_minus(last)))
        if last.get("normalized_score") is not None:
            summary.append(("Normalised score", f"{last['normalized_score']:.1f}"))
    return summary


def _figures(rows: Sequence[Row]) -> list[tuple[str, Markup]]:
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    figures = []
    if evaluations:
        data_return = dataset_facts(rows, evaluations[-1].get("module_id")).get("return_mean")
        figures.append(("Evaluation", _evaluation_figure(evaluations, data_return)))
    figures.extend((f"Learning curve: {name}", _curve_figure(train, name)) for name in loss_names(train))
    if any(is_number(row.get(key)) for row in train for key, _, _ in _SPLIT):
        figures.append(("Where the time goes", _throughput_figure(train)))
    return figures


def _evaluation_figure(rows: Sequence[Row], data_return: float | None) -> Markup:
    figure, axes = make_axes("step", "mean return")
    rows = [row for row in rows if is_number(row.get("return_mean"))]
    errors = [row.get("return_standard_error") or 0.0 for row in rows]
    steps, means = [row["step"] for row in rows], [row["return_mean"] for row in rows]
    axes.errorbar(steps, means, yerr=errors, fmt="o-", color=BLUE, capsize=3, label="policy ± std. error")
    if data_return is not None:
        axes.axhline(data_return, color=GREY, linestyle="--", label="mean of the data")
    axes.legend(frameon=False)
    return as_svg(figure)


def _curve_figure(rows: Sequence[Row], name: str) -> Markup:
    figure, axes = make_axes("step", name)
    axes.plot(*points(rows, name), color=BLUE)
    return as_svg(figure)


def _throughput_figure(rows: Sequence[Row]) -> Markup:
    """Draw each row's shares of compute, exchange and waiting, and the rate above them."""
    figure, axes = make_axes("step", "share of time")
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
    rated, rates = points(rows, "steps_per_second")
    if rates:
        right = axes.twinx()
        right.plot(rated, rates, color="black", linewidth=1)
        right.set_ylabel("steps per second (line)")
        right.set_ylim(bottom=0)
    return as_svg(figure)
