"""Event files for TensorBoard in the run's directory: `tensorboard --logdir RUNS`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.run_log import Row

from .scalars import scalars

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_FLUSH_SECONDS = 5
_OWN_FILES = "events.out.tfevents.*"


class TensorBoardConfig(BaseModel):
    """Event files in `RUN/tensorboard`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["tensorboard"] = "tensorboard"
    """Which logger."""


class TensorBoardLogger:
    """Writes a run's curves, evaluations and events as TensorBoard's event files.

    At every start they are written anew from the rows that count: what a killed run had not flushed is there again,
    and what it said beyond its last checkpoint is not.
    """

    name = "tensorboard"

    def __init__(self, config: TensorBoardConfig, run: RunDirectory, job: str) -> None:
        """Write nothing yet.

        Args:
            config: nothing so far.
            run: gets the folder `tensorboard`.
            job: the job as YAML.
        """
        self._folder = run.path / "tensorboard"
        self._job = job
        self._writer: SummaryWriter | None = None

    def begin(self, rows: Sequence[Row]) -> None:
        """Replace the event files by one with these rows."""
        from torch.utils.tensorboard import SummaryWriter

        self.close()
        for file in self._folder.glob(_OWN_FILES):
            file.unlink()
        # purge_step: a TensorBoard that is running forgets what it has read of the files that went.
        self._writer = SummaryWriter(str(self._folder), purge_step=0, flush_secs=_FLUSH_SECONDS)
        self._writer.add_text("job", f"```yaml\n{self._job}```")
        for row in rows:
            self.log(row)

    def log(self, row: Row) -> None:
        """Add the row's numbers as scalars; an event as text."""
        writer = self._writer
        if writer is None:
            return
        for name, value in scalars(row).items():
            writer.add_scalar(name, value, row["step"], walltime=row["time"])
        if row["kind"] == "event":
            details = {k: v for k, v in row.items() if k not in ("version", "run", "step", "time", "kind", "name")}
            text = ", ".join([str(row.get("name")), *(f"{key}: {value}" for key, value in details.items())])
            writer.add_text("events", text, max(0, row["step"]), walltime=row["time"])

    def close(self) -> None:
        """Write what is left."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
