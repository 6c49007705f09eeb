"""The directory in which schedule and history are kept."""

import os
import stat
from pathlib import Path

from dask_rl.storage.errors import ConfigError, explain

HOME_VARIABLE = "DASK_RL_HOME"


class JobsHome:
    """Paths of schedule and history.

    Who can write here chooses what is run: it is created for its owner alone, and one of somebody else is refused.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """Name it; None: that of $DASK_RL_HOME, else ~/.dask-rl."""
        self.path = Path(path or os.environ.get(HOME_VARIABLE) or "~/.dask-rl").expanduser().absolute()
        self.database = self.path / "jobs.sqlite"
        self.server_lock = self.path / "serve.lock"
        self.logs = self.path / "logs"

    def create(self) -> "JobsHome":
        """Make it where it is missing, and return self.

        Raises:
            ConfigError: it cannot be made, or others may write into it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = self.path.stat()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise self._refusal(reason, "a directory that can be written", "choose another one") from None
        if status.st_uid != os.geteuid():
            raise self._refusal("somebody else's", "a directory of your own", "choose another one")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            got = "open to everybody" if status.st_mode & stat.S_IWOTH else "open to its group"
            raise self._refusal(got, "one that others cannot write", f"chmod go-w '{self.path}'")
        return self

    def _refusal(self, got: str, allowed: str, fix: str) -> ConfigError:
        return ConfigError(explain(f"home {self.path}", got=got, allowed=allowed, fix=fix))
