"""attach: the live runs of a scheduler and handles on them, from any process.

What comes from there is JSON that the scheduler has checked; nothing of a run is unpickled, and of the paths that it
names only its job, its result and its own checkpoints are read, none of which runs code.
"""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import overload

from distributed import Client, get_client
from distributed.client import ClosedClientError
from distributed.security import Security

from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.joined import connect
from dask_rl.pipeline.runs.config_errors import validate
from dask_rl.pipeline.runs.security import SecurityConfig, open_security
from dask_rl.storage.errors import ConfigError, DaskRLError, explain
from dask_rl.storage.html import html_grid

from .attached_run import AttachedRun
from .control import RunState
from .live_run import LiveRun
from .scheduler_link import SchedulerLink

CONNECT_SECONDS = 30.0
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+")


class LiveRuns(Sequence[LiveRun]):
    """The runs that were live on a scheduler at the last look, the newest first; by number or by name.

    A context manager: its end, or `close()`, closes the connection that `attach` opened. The runs go on.
    """

    def __init__(self, scheduler: SchedulerLink, close: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._close = close
        self._ids: list[str] = []
        self._runs: list[LiveRun] = []
        self.refresh()

    def refresh(self) -> "LiveRuns":
        """Look again which runs are live; return self."""
        live = [run for run in self._scheduler.summaries() if not run.state.is_over]
        self._ids = [run.run_id for run in live]
        self._runs = [LiveRun(AttachedRun(self._scheduler, run)) for run in live]
        return self

    def close(self) -> None:
        """Let go of the scheduler. The handles are of no use then."""
        with suppress(ClosedClientError):
            self._scheduler.close()
        self._close()

    def __enter__(self) -> "LiveRuns":
        """Return the list."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, key: int | str) -> LiveRun: ...

    @overload
    def __getitem__(self, key: slice) -> Sequence[LiveRun]: ...

    def __getitem__(self, key: int | str | slice) -> LiveRun | Sequence[LiveRun]:
        if not isinstance(key, str):
            return self._runs[key]
        found = [run for run in self._runs if run.name == key]
        if len(found) != 1:
            got = f"{key!r}, the name of {len(found)} live runs"
            allowed = ", ".join(run.name for run in self._runs) or "none: no run is live"
            raise ConfigError(explain("run", got=got, allowed=allowed, fix="use its number in the list"))
        return found[0]

    def __repr__(self) -> str:
        return "\n".join(f"{number}: {run!r}" for number, run in enumerate(self._runs)) or "no live run"

    def _repr_html_(self) -> str:
        try:
            known = {run.run_id: run for run in self._scheduler.summaries()}
        except DaskRLError:  # a repr that raises hides what it was for
            known = {}
        rows = []
        for number, (run_id, run) in enumerate(zip(self._ids, self._runs, strict=True)):
            state = known[run_id].state if run_id in known else RunState("lost")
            rows.append((number, run.name, state.status, f"{state.step} of {run.num_steps}", state.score))
        return html_grid("live runs", ("", "run", "status", "step", "return"), rows)


def attach(
    where: Client | str | os.PathLike[str] | None = None,
    *,
    security: Security | SecurityConfig = None,
    timeout_seconds: float = CONNECT_SECONDS,
) -> LiveRuns:
    """Return handles on the runs that are live on a scheduler, those of `dask-rl train` too.

    The scheduler gets the learners page where it has none, which keeps account of the runs.

    Args:
        where: a client; or the address of a scheduler (a run's `address`, or what `dask-rl train` says), or the file
            that `dask scheduler --scheduler-file` wrote; None: the current default client.
        security: for an address or a file: `{ca_file, cert, key}` as in a job, or Dask's own; None: as Dask is
            configured. A client has its own.
        timeout_seconds: bound on reaching the scheduler.

    Raises:
        ConfigError: no scheduler answers there, or it has no dask-rl installed.
    """
    if where is None or isinstance(where, Client):
        client = where or _default_client()
        return LiveRuns(SchedulerLink(client), lambda: None)
    given = None if isinstance(security, Security) else security
    settings = {**_place(os.fspath(where)), "startup_timeout_seconds": timeout_seconds, "security": given}
    config = validate(ClusterConfig, settings, "attach")
    credentials = security if isinstance(security, Security) else open_security(config.security)
    client = connect(config, credentials, set_as_default=False)
    try:
        return LiveRuns(SchedulerLink(client), client.close)
    except BaseException:
        client.close()
        raise


def _place(where: str) -> dict[str, str]:
    """Return the settings of a cluster that name the scheduler: by its address, or by its file."""
    if where.startswith(("http://", "https://")):
        allowed = "a scheduler's, such as tcp://127.0.0.1:8786"
        fix = "take the one that dask-rl train names beside the dashboard's, or a run's `address`"
        raise ConfigError(explain("attach", got=f"{where}, the address of a dashboard", allowed=allowed, fix=fix))
    if "://" in where or (_HOST_AND_PORT.fullmatch(where) and not os.path.exists(where)):
        return {"kind": "address", "address": where}
    if os.path.isdir(where):
        allowed = "the address of a scheduler, or a scheduler file"
        fix = "take the address that dask-rl train names beside the dashboard's, or a run's `address`"
        raise ConfigError(explain("attach", got=f"{where}, a directory", allowed=allowed, fix=fix))
    return {"kind": "scheduler_file", "scheduler_file": where}


def _default_client() -> Client:
    try:
        return get_client()
    except ValueError:
        allowed = "a client, an address such as tcp://127.0.0.1:8786, or a scheduler file"
        got, fix = "nothing, and there is no default client", "say where the scheduler is"
        raise ConfigError(explain("attach", got=got, allowed=allowed, fix=fix)) from None
