"""`/learners.json`: what the page shows, for programs."""

import json
from typing import Any

from distributed.http.utils import RequestHandler


class LearnersJSON(RequestHandler):
    """Answers with all runs and groups; `?run=RUN_ID` with one run and its rows."""

    def initialize(self, plugin: Any) -> None:
        """Take the plugin that knows."""
        self._plugin = plugin

    def get(self) -> None:
        """Answer."""
        snapshot = self._plugin.snapshot()
        run_id = self.get_query_argument("run", None)
        if run_id is not None:
            found = [run for run in snapshot["runs"] if run["run_id"] == run_id]
            if not found:
                self.set_status(404)
                self.write({"error": "no such run"})
                return
            snapshot = {"version": snapshot["version"], "run": found[0], "rows": self._plugin.rows(run_id)}
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.write(json.dumps(snapshot, allow_nan=False))


def prefix_of(scheduler: Any) -> str:
    """Return what the addresses of a scheduler's pages begin with: "/" unless it was started with another prefix."""
    prefixes = [app.prefix for app in scheduler.http_application.applications if hasattr(app, "app_paths")]
    return f"/{prefix.strip('/')}/" if (prefix := next(iter(prefixes), "").strip("/")) else "/"


def add_to(scheduler: Any, plugin: Any) -> None:
    """Serve it."""
    route = rf"{prefix_of(scheduler)}learners\.json"
    scheduler.http_application.add_handlers(".*", [(route, LearnersJSON, {"plugin": plugin})])
