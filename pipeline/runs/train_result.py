"""TrainResult: what a run came to."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dask_rl.storage.html import html_table

from .learning_curve import losses_of
from .run_directory import RunDirectory, damaged


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    num_steps: int
    """Gradient steps done, over all starts of the run."""
    run: Path
    """The run's directory."""
    final_metrics: dict[str, Any]
    """The last row of the learning curve."""
    evaluation: dict[str, Any] | None
    """Return mean, standard error and number of episodes of the last evaluation."""
    weights_hash: str
    """sha256 over the weights in name order: the same for bit-identical runs."""
    interrupted: bool = False
    """Whether a signal or `stop()` ended it; the same job resumes."""

    def _repr_html_(self) -> str:
        rows: dict[str, Any] = {"steps": self.num_steps, **losses_of(self.final_metrics)}
        if self.evaluation is not None:
            rows["mean return"] = self.evaluation.get("return_mean")
            rows["episodes"] = self.evaluation.get("num_episodes")
        state = "interrupted" if self.interrupted else "complete"
        rows |= {"state": state, "directory": self.run, "weights": self.weights_hash[:12]}
        return html_table(f"run {self.run.resolve().name}", rows)


def result_so_far(run: RunDirectory, num_steps: int, weights_hash: str, *, interrupted: bool) -> TrainResult:
    """Return what a run came to by a step, as its metrics.jsonl says."""
    rows = [row for row in run.rows() if row["step"] <= num_steps]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    curve = [row for row in rows if row["kind"] == "train"]
    return TrainResult(
        num_steps=num_steps,
        run=run.path,
        final_metrics=_without_row_keys(curve[-1]) if curve else {},
        evaluation=_without_row_keys(evaluations[-1]) if evaluations else None,
        weights_hash=weights_hash,
        interrupted=interrupted,
    )


def load_result(run: RunDirectory) -> TrainResult:
    """Read the result of a complete run; raise RunStateError where it is damaged."""
    try:
        saved = TypeAdapter(TrainResult).validate_json(run.result_file.read_bytes())
    except ValidationError:
        fix = "delete it and run the same command again: it goes on from the last checkpoint"
        raise damaged(run.result_file, "something else", fix) from None
    return replace(saved, run=run.path)


def _without_row_keys(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("version", "run", "time", "kind")}
