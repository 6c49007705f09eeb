"""Which of a job's runs is in use: the link `current` in the directory of all its runs."""

import json
import os
from pathlib import Path
from typing import Any

from dask_rl.pipeline.runs.batch_config import PREVIOUS, BatchConfig
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.storage.checkpoint import CheckpointStore
from dask_rl.storage.errors import RunStateError, explain
from dask_rl.storage.files import fsync_path

CURRENT = "current"


def current_run(base: Path) -> Path | None:
    """Return the run that was promoted last, None where there is none any more.

    Raises:
        RunStateError: `current` is something else than a link.
    """
    link = base / CURRENT
    if not link.is_symlink():
        if link.exists():
            got, fix = "something that is no link", "move it away"
            raise RunStateError(explain(str(link), got=got, allowed="a link to a run", fix=fix))
        return None
    return link.resolve() if link.is_dir() else None


def promote(run: Path) -> None:
    """Point `current` beside a run to it; whoever looks sees the old or the new one."""
    link, unfinished = run.with_name(CURRENT), run.with_name(f".{CURRENT}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(run.name)
    unfinished.replace(link)
    fsync_path(run.parent)


def initial_weights(batch: BatchConfig, base: Path) -> str | None:
    """Return what a new run begins with: the path of a checkpoint, or what the job names; None: nothing."""
    if batch.initialize_from != PREVIOUS:
        return batch.initialize_from
    previous = current_run(base)
    latest = None if previous is None else CheckpointStore(previous / "checkpoints").latest()
    return None if latest is None else str(latest)


def reason_to_keep(batch: BatchConfig, evaluation: dict[str, Any] | None, run: Path) -> str | None:
    """Return why a complete run is not promoted, None where it is."""
    old = current_run(run.parent)
    if batch.keep_if == "always" or old is None or old == run.resolve():
        return None
    before, after = run_result(old).get("evaluation") or {}, evaluation or {}
    if before.get("return_mean") is None or before.get("environment") != after.get("environment"):
        return None  # nothing to compare with
    if after.get("return_mean") is not None and after["return_mean"] >= before["return_mean"]:
        return None
    return f"not promoted: return {_number(after)} after {_number(before)} of {old.name}"


def run_result(run: Path) -> dict[str, Any]:
    """Return result.json of a run; empty where it has none that can be read."""
    try:
        result = json.loads(RunDirectory(run).result_file.read_bytes())
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}


def _number(evaluation: dict[str, Any]) -> str:
    mean = evaluation.get("return_mean")
    return f"{mean:.6g}" if isinstance(mean, int | float) else "none"
