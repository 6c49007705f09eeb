"""Which of a job's runs is in use: the link `current` in the directory of all its runs."""

import os
from dataclasses import dataclass
from pathlib import Path

from dask_rl.pipeline.runs.batch_config import PREVIOUS, BatchConfig
from dask_rl.storage.checkpoints.store import CheckpointStore
from dask_rl.storage.errors import RunStateError, explain
from dask_rl.storage.files import fsync_path

from .run_results import Evaluation, load_result

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


@dataclass(frozen=True)
class Verdict:
    """Whether a complete run is promoted."""

    is_promoted: bool
    reason: str | None = None
    """Why not; or what could not be compared."""


def judge(batch: BatchConfig, run: Path) -> Verdict:
    """Compare a complete run with the one in use.

    Raises:
        RunStateError: its result is damaged. Where that of the run in use is, there is nothing to compare with.
    """
    old, after = current_run(run.parent), load_result(run).evaluation or Evaluation()
    if batch.keep_if == "always" or old is None or old == run.resolve():
        return Verdict(True)
    try:
        before = load_result(old).evaluation or Evaluation()
    except (RunStateError, OSError) as error:
        return Verdict(True, f"promoted without a comparison: {error}")
    if before.return_mean is None or before.environment != after.environment:
        return Verdict(True)  # nothing to compare with
    if after.return_mean is not None and after.return_mean >= before.return_mean:
        return Verdict(True)
    return Verdict(False, f"not promoted: return {_number(after)} after {_number(before)} of {old.name}")


def _number(evaluation: Evaluation) -> str:
    return "none" if evaluation.return_mean is None else f"{evaluation.return_mean:.6g}"
