"""What reports share: their templates, and what they say of a job and its rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml

from dask_rl.pipeline.runs.run_directory import damaged
from dask_rl.pipeline.runs.run_log import Row

from .cli_command import as_text

TEMPLATES = Path(__file__).parent


def render(template: str, **values: Any) -> str:
    """Return a page; every value is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, loader=jinja2.FileSystemLoader(TEMPLATES)
    )
    environment.filters["as_text"] = as_text
    return environment.get_template(template).render(**values)


def read_job(file: Path) -> Row:
    """Return the job as it was written, by whatever version of dask-rl."""
    try:
        job = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        job = None
    if not isinstance(job, dict):
        raise damaged(file, "no job")
    return job


def algorithms(job: Row) -> str:
    """Return the algorithm's name; of several modules, each with its own."""
    name = str(job.get("algorithm", {}).get("name", "?"))
    datasets, own = job.get("dataset"), job.get("modules") or {}
    if not isinstance(datasets, Mapping):
        return name
    return ", ".join(f"{module_id}: {own.get(module_id, {}).get('name', name)}" for module_id in sorted(datasets))


def median_rate(train: Sequence[Row]) -> float | None:
    """Return the median of the steps per second; None where none are known."""
    rates = sorted(row["steps_per_second"] for row in train if row.get("steps_per_second"))
    return rates[len(rates) // 2] if rates else None


def flatten(values: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested values as (dotted key, value)."""
    flat: list[tuple[str, Any]] = []
    for key, value in values.items() if isinstance(values, Mapping) else ():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.extend(flatten(value, f"{name}."))
        else:
            flat.append((name, value))
    return flat


def facts(row: Row, *without: str) -> dict[str, Any]:
    """Return what a row says, but what every row says."""
    return {k: v for k, v in row.items() if k not in {"version", "run", "step", "time", "kind", *without}}


def plus_minus(row: Row) -> str:
    """Return an evaluation's mean return with its standard error."""
    if row.get("return_mean") is None:
        return "not finite"
    error = row.get("return_standard_error")
    return f"{row['return_mean']:.1f}" + ("" if error is None else f" ± {error:.1f}")
