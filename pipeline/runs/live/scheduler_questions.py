"""Functions that run on a scheduler for `attach`. Their answers are JSON as text: nothing that a run said is unpickled.

The scheduler imports this module, so it needs no torch.
"""

import json
import time
from typing import Any

from dask_rl.pipeline.dashboard import CONTROL_TOPIC, PLUGIN_NAME, TOPIC

_SILENT_SECONDS = 15.0
_OF_RUNS = ("begin", "row", "status", "alive")


def summaries(dask_scheduler: Any) -> str:
    """Return the runs that the scheduler knows."""
    return json.dumps(dask_scheduler.plugins[PLUGIN_NAME].snapshot()["runs"])


def rows_of(run_id: str, dask_scheduler: Any) -> str:
    """Return the rows of a run; none of one that is not known."""
    plugin = dask_scheduler.plugins[PLUGIN_NAME]
    return json.dumps(plugin.rows(run_id) if run_id in plugin.live_runs.runs else [])


def publish(message: dict[str, str], dask_scheduler: Any) -> None:
    """Send a request to all runs, of which the one that it names takes it."""
    dask_scheduler.log_event(CONTROL_TOPIC, message)


def num_unknown(dask_scheduler: Any) -> int:
    """Count the runs that said something lately and are not known."""
    since, said = time.time() - _SILENT_SECONDS, set()
    for said_at, message in dask_scheduler.get_events(TOPIC):
        if said_at >= since and isinstance(message, dict) and message.get("kind") in _OF_RUNS:
            said.add(str(message.get("run_id")))
    return len(said - set(dask_scheduler.plugins[PLUGIN_NAME].live_runs.runs))
