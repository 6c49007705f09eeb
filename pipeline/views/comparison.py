"""One self-contained HTML page about several runs: their curves together, and what differs between their jobs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dask_rl.pipeline.runs.run_directory import RunDirectory, dataset_facts, write_atomic
from dask_rl.pipeline.runs.run_log import Row
from dask_rl.storage.errors import ConfigError, explain

from .cli_command import as_text
from .figures import GREY, as_svg, is_number, loss_names, make_axes, points
from .report_page import algorithms, facts, flatten, median_rate, plus_minus, read_job, render

# Okabe and Ito's colours without yellow, which is too light on white.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_LINES = ("-", "--", ":", "-.")
_DASHES = {"-": "", "--": "6 3", ":": "2 2", "-.": "6 2 2 2"}
_NOT_COMPARED = {"run", "name"}


@dataclass(frozen=True)
class ComparedRun:
    """One run of several: what it is called, how it is drawn, what it has said."""

    directory: RunDirectory
    label: str
    color: str
    line: str
    rows: Sequence[Row]
    job: Row

    @cached_property
    def train(self) -> list[Row]:
        """Rows of the learning curve."""
        return [row for row in self.rows if row["kind"] == "train"]

    @cached_property
    def evaluations(self) -> list[Row]:
        """Rows of evaluations whose mean is a number."""
        return [row for row in self.rows if row["kind"] == "evaluation" and is_number(row.get("return_mean"))]

    @property
    def dashes(self) -> str:
        """The line's dashes for SVG."""
        return _DASHES[self.line]

    def summary(self) -> list[str]:
        """Return its cells of the table of runs."""
        steps = self.train[-1]["step"] if self.train else 0
        rate = median_rate(self.train)
        best = max(self.evaluations, key=lambda row: row["return_mean"], default=None)
        return [
            algorithms(self.job),
            f"{steps:,} of {self.job.get('num_steps', 0):,}" + ("" if self.directory.is_complete else ", incomplete"),
            "" if rate is None else f"{rate:,.0f}",
            plus_minus(self.evaluations[-1]) if self.evaluations else "",
            "" if best is None else f"{plus_minus(best)} at step {best['step']:,}",
        ]


def write_comparison(runs: Sequence[RunDirectory], output: Path) -> Path:
    """Write a page that compares runs; return its path.

    Args:
        runs: two or more, each once.
        output: the page.

    Raises:
        ConfigError: a run is named twice.
        RunStateError: a directory is no run, or its metrics cannot be read.
    """
    compared = _open(runs)
    page = render(
        "comparison.html",
        runs=compared,
        figures=_figures(compared),
        differences=_table(compared, lambda run: run.job, only_differences=True),
        datasets=_table(compared, _dataset_facts),
    )
    write_atomic(output, page)
    return output


def _open(runs: Sequence[RunDirectory]) -> list[ComparedRun]:
    paths = [run.require().path.resolve() for run in runs]
    twice = next((str(path) for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ConfigError(explain("runs to compare", got=f"{twice} twice", allowed="each once", fix="name it once"))
    styles = [(color, line) for line in _LINES for color in _COLORS]
    return [
        ComparedRun(run, label, *styles[number % len(styles)], rows=run.rows(), job=read_job(run.job_file))
        for number, (run, label) in enumerate(zip(runs, _labels(paths), strict=True))
    ]


def _labels(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path, or as many as tell them apart."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        labels = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(labels)) == len(labels):
            break
    return labels


def _figures(runs: Sequence[ComparedRun]) -> list[tuple[str, Markup]]:
    figures = [(f"Evaluation: {title}", _returns(runs, key)) for key, title in _evaluated(runs).items()]
    names = loss_names(row for run in runs for row in run.train)
    figures += [(f"Learning curve: {name}", _curves(runs, name, name)) for name in names]
    if any(points(run.train, "steps_per_second")[0] for run in runs):
        figures.append(("Throughput", _curves(runs, "steps_per_second", "steps per second", bottom=0)))
    return figures


def _evaluated(runs: Sequence[ComparedRun]) -> dict[tuple[str, str], str]:
    """Return what was evaluated, (environment, module id): returns of different ones are not drawn together."""
    keys = {_evaluation_key(row) for run in runs for row in run.evaluations}
    return {key: " of module ".join(filter(None, key)) or "returns" for key in sorted(keys)}


def _evaluation_key(row: Row) -> tuple[str, str]:
    return str(row.get("environment", "")), str(row.get("module_id", ""))


def _returns(runs: Sequence[ComparedRun], key: tuple[str, str]) -> Markup:
    figure, axes = make_axes("step", "mean return ± std. error")
    data = set()
    for run in runs:
        rows = [row for row in run.evaluations if _evaluation_key(row) == key]
        if not rows:
            continue
        steps, means = points(rows, "return_mean")
        errors = [row.get("return_standard_error") or 0.0 for row in rows]
        axes.errorbar(
            steps, means, yerr=errors, fmt="o", linestyle=run.line, color=run.color, capsize=3, label=_legend(run)
        )
        data.add(dataset_facts(run.rows, rows[-1].get("module_id")).get("return_mean"))
    mean = data.pop() if len(data) == 1 else None
    if mean is not None:
        axes.axhline(mean, color=GREY, linestyle="--", label="mean of the data")
    axes.legend(frameon=False)
    return as_svg(figure)


def _curves(runs: Sequence[ComparedRun], name: str, axis: str, bottom: float | None = None) -> Markup:
    figure, axes = make_axes("step", axis)
    for run in runs:
        steps, values = points(run.train, name)
        if steps:
            marker = "o" if len(steps) == 1 else ""
            axes.plot(steps, values, run.line, color=run.color, marker=marker, label=_legend(run))
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
    axes.legend(frameon=False)
    return as_svg(figure)


def _legend(run: ComparedRun) -> str:
    """Return the label as matplotlib shows it: `$` begins no formula, and `_` at the beginning hides nothing."""
    return " " + run.label.replace("$", r"\$") if run.label.startswith("_") else run.label.replace("$", r"\$")


def _dataset_facts(run: ComparedRun) -> Mapping[str, Any]:
    return next((facts(row) for row in run.rows if row["kind"] == "dataset"), {})


def _table(
    runs: Sequence[ComparedRun], values_of: Callable[[ComparedRun], Any], *, only_differences: bool = False
) -> list[tuple[str, list[str], bool]]:
    """Return (key, the value of each run, whether they differ) for every key that some run has."""
    flat = [dict(flatten(values_of(run))) for run in runs]
    table = []
    for key in dict.fromkeys(key for values in flat for key in values):
        if key in _NOT_COMPARED:
            continue
        cells = [_cell(values[key]) if key in values else "unset" for values in flat]
        differ = len({repr(values.get(key, "unset")) for values in flat}) > 1
        if differ or not only_differences:
            table.append((key, cells, differ))
    return table


def _cell(value: Any) -> str:
    return "default" if value is None else as_text(value)
