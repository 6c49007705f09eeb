"""What is to be rendered: a job, when, and where from."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dask_rl.pipeline.jobs.cron_expression import CronExpression
from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.storage.errors import ConfigError, explain


@dataclass(frozen=True)
class RenderRequest:
    """A job for somebody else's scheduler."""

    job: TrainJob
    """As its file and `overrides` say."""
    text: str
    """Its file, as it stands."""
    file: Path
    """Absolute."""
    directory: Path
    """What relative paths in it mean; absolute."""
    name: str
    """The job's name, as in the history."""
    cron: CronExpression | None
    """When it is due; None: somebody else says when."""
    timezone: str | None
    """IANA name of the zone that `cron` is meant in; None: that of the machine."""
    home: Path | None
    """Where the history is kept; None: where `dask-rl` looks by itself."""
    overrides: Sequence[str]
    """`a.b=c` for values that differ from the file's."""

    @property
    def unit(self) -> str:
        """Name for files and units."""
        return f"dask-rl-{self.name}"

    @property
    def base(self) -> Path:
        """Directory of the job's runs."""
        return self.directory / self.job.run

    def needs_cron(self, target: str) -> CronExpression:
        """Return when it is due; raise ConfigError where that was not said."""
        if self.cron is None:
            fix = 'add --cron "0 2 * * *"'
            raise ConfigError(explain("--cron", got="none", allowed=f"when it is due, for {target}", fix=fix))
        return self.cron

    def exec_words(
        self, *more: str, python: str = sys.executable, file: str | None = None, home: str | None = None
    ) -> list[str]:
        """Return the command that runs the job once.

        Args:
            more: options of its own.
            python: of the machine that runs it.
            file: the job's file there; None: where it is here.
            home: where the history is kept there; None: as the request says.
        """
        chosen = home or (None if self.home is None else str(self.home))
        options = [] if chosen is None else [f"--home={chosen}"]
        options += [f"--set={override}" for override in self.overrides]
        words = [python, "-P", "-m", "dask_rl", "jobs", "exec", str(self.file) if file is None else file]
        return [*words, f"--name={self.name}", *options, *more]
