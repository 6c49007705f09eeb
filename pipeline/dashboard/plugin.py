"""LearnersPlugin: keeps a scheduler's LiveRuns, and puts the page into its dashboard."""

import importlib
import logging
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from dask_rl.learners.published import METRIC

from .live_runs import LiveRuns

PLUGIN_NAME = "dask-rl"
"""Of the plugin, and of the topic that it listens to."""
LOOK_EVERY_SECONDS = 1.0
"""How often it looks at what the workers published."""
logger = logging.getLogger("dask_rl.dashboard")


class LearnersPlugin(SchedulerPlugin):
    """Listens to runs and learners; a page that cannot be shown is a warning, and never an error of the scheduler."""

    name = PLUGIN_NAME
    idempotent = True

    def __init__(self) -> None:
        self.live_runs = LiveRuns()
        self._scheduler: Any = None
        self._looking: PeriodicCallback | None = None
        self._ends: list[Callable[[], None]] = []
        self.is_open = True
        """Whether its scheduler is."""

    def __reduce__(self) -> tuple[type["LearnersPlugin"], tuple[()]]:
        """Travel to a scheduler as a new one."""
        return LearnersPlugin, ()

    async def start(self, scheduler: Any) -> None:
        """Catch up with what was said before, and show the page."""
        if self._scheduler is not None:
            return
        self._scheduler = scheduler
        ago = time.time() - time.monotonic()
        for said_at, message in scheduler.get_events(PLUGIN_NAME):
            self.live_runs.hear(message, said_at - ago)
        self._looking = PeriodicCallback(self.look, LOOK_EVERY_SECONDS * 1000)
        self._looking.start()
        for part in ("routes", "page", *(["prometheus"] if find_spec("prometheus_client") else [])):
            self._try_to_show(part)

    def _try_to_show(self, part: str) -> None:
        """Add one part of the dashboard; each leans on inner parts of Dask and Bokeh, and training on none of them."""
        try:
            importlib.import_module(f".{part}", __package__).add_to(self._scheduler, self)
        except Exception as error:
            versions = ", ".join(f"{package} {version(package)}" for package in ("dask-rl", "distributed", "bokeh"))
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            logger.warning("The dashboard has no %s of learners: %s (%s)", part, cause, versions)

    def at_close(self, end: Callable[[], None]) -> None:
        """Have something ended with the scheduler."""
        self._ends.append(end)

    async def close(self) -> None:
        """Stop looking."""
        self.is_open = False
        for end in self._ends:
            end()
        if self._looking is not None:
            self._looking.stop()

    def log_event(self, topic: str, msg: Any) -> None:
        """Take in what a run says."""
        if topic == PLUGIN_NAME:
            self.live_runs.hear(msg, time.monotonic())

    def remove_worker(self, scheduler: Any, worker: str, *, stimulus_id: str, **kwargs: Any) -> None:
        """Take note of a worker that left."""
        self.live_runs.lose_worker(worker, time.monotonic())

    def look(self) -> None:
        """Take in what the workers have published by now."""
        workers: Mapping[str, Any] = self._scheduler.workers
        published = {address: worker.metrics.get(METRIC) for address, worker in workers.items()}
        self.live_runs.see(published, time.monotonic())

    def snapshot(self) -> dict[str, Any]:
        """Return all runs and groups as JSON values, without the runs' rows."""
        return self.live_runs.snapshot(time.monotonic(), time.time())

    def rows(self, run_id: str) -> list[dict[str, Any]]:
        """Return a run's rows of metrics.jsonl; KeyError for one that is not known."""
        return self.live_runs.rows(run_id)
