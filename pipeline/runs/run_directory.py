"""The directory of a run: its job, its metrics, its checkpoints, its report, and who works on it.

    RUN/job.yaml  resolved.yaml  metrics.jsonl  checkpoints/  result.json  report.html  run.lock

A row of metrics.jsonl is `{version, run, step, time, kind, …}`. Kinds, and what the report reads of them:
`dataset`     once: facts; return_mean, ref_scores; of several modules under `modules`, by module id
`train`       …loss, steps_per_second, data_wait_seconds, compute_seconds, collective_seconds
`evaluation`  environment, return_mean, return_standard_error, num_episodes, normalized_score; of several modules
              module_id too
`event`       name, and what belongs to it
"""

import json
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dask_rl.storage.errors import RunStateError, explain

from .run_lock import RunLock

METRICS_VERSION = 1


class RunDirectory:
    """Paths and files of one run. Only the holder of `locked()` may write."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.job_file = self.path / "job.yaml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.report_file = self.path / "report.html"
        self.result_file = self.path / "result.json"

    @property
    def name(self) -> str:
        """The run's name: its directory's."""
        return self.path.resolve().name

    @property
    def is_complete(self) -> bool:
        """Whether it was trained to its end."""
        return self.result_file.exists()

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    @contextmanager
    def locked(self) -> Iterator["RunDirectory"]:
        """Create the directory where it is missing and hold it; a live run elsewhere raises RunStateError."""
        if (self.path / "commit.json").exists():
            fix = "choose another path for run"
            raise RunStateError(
                explain("run", got=f"{self.path}, a dataset", allowed="a directory of its own", fix=fix)
            )
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunStateError(
                explain(
                    "run",
                    got=f"{self.path}: {error.strerror or error}",
                    allowed="a directory that can be written",
                    fix="choose another path for run",
                )
            ) from None
        with RunLock(self.path / "run.lock"):
            yield self

    def refuse_if_live(self) -> None:
        """Raise RunStateError where another process works on the run; writes nothing."""
        lock = self.path / "run.lock"
        if lock.exists():
            with RunLock(lock):
                pass

    def require(self) -> "RunDirectory":
        """Return self where this is a run; raise RunStateError where it is not."""
        if not self.job_file.is_file():
            raise RunStateError(
                explain(
                    "run",
                    got=f"{self.path}, which holds no job.yaml",
                    allowed="the directory of a run",
                    fix="start it with `dask-rl train JOB.yaml`",
                )
            )
        return self

    def append(self, kind: str, step: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Append one row to metrics.jsonl and return it. Numbers that are not finite become null."""
        row = {
            "version": METRICS_VERSION,
            "run": self.name,
            "step": step,
            "time": time.time(),
            "kind": kind,
        }
        row |= {key: json_value(value) for key, value in values.items()}
        line = json.dumps(row, allow_nan=False) + "\n"
        with self.metrics_file.open("ab") as file:
            file.write(line.encode())
        return row

    def rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl, in order, of one kind or all; a torn last line is left out.

        Raises:
            RunStateError: a line is not a row, or a newer version's.
        """
        if not self.metrics_file.exists():
            return []
        lines = self.metrics_file.read_bytes().split(b"\n")[:-1]  # what follows the last newline is torn
        rows = [self._parse(line, number) for number, line in enumerate(lines, 1) if line.strip()]
        return [row for row in rows if kind is None or row["kind"] == kind]

    def cut_after(self, step: int) -> int:
        """Drop the rows beyond `step` (and a torn last line) but events, which did happen; return how many went."""
        rows = self.rows()
        kept = [row for row in rows if row["step"] <= step or row["kind"] == "event"]
        if self.metrics_file.exists():
            write_atomic(self.metrics_file, "".join(json.dumps(row) + "\n" for row in kept))
        return len(rows) - len(kept)

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
            fits = isinstance(row["step"], int) and isinstance(row["kind"], str)
            version = row["version"] if fits else None
        except (ValueError, KeyError, TypeError, RecursionError):
            version = None
        if version != METRICS_VERSION:
            raise RunStateError(
                explain(
                    f"{self.metrics_file}, line {number}",
                    got="no row of metrics" if version is None else f"version {version}",
                    allowed=f"rows of version {METRICS_VERSION}",
                    fix="delete that line or use the dask-rl that wrote it",
                )
            )
        return dict(row)


def dataset_facts(rows: Iterable[Mapping[str, Any]], module_id: str | None) -> Mapping[str, Any]:
    """Return the recorded facts about a module's dataset: the only one's where there are not several."""
    facts = next((row for row in rows if row["kind"] == "dataset"), {})
    found: Mapping[str, Any] = facts.get("modules", {module_id: facts}).get(module_id, {})
    return found


def damaged(path: Path, reason: str, fix: str = "restore it from a copy, or choose another directory") -> RunStateError:
    """Return the error for a file of a run that is not as it was written."""
    return RunStateError(explain(str(path), got=reason, allowed="what the run wrote there", fix=fix))


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that readers, and a crash at any time, see the old or the new text."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def json_value(value: Any) -> Any:
    """Return a JSON value: numpy and torch scalars as Python's, numbers that JSON lacks as None."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if hasattr(value, "item"):  # a numpy or torch scalar
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
