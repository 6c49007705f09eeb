"""The learners page of Dask's dashboard: what the runs and learners of a cluster do, and what befell them.

Clusters that are started here have it. On another scheduler: `dask scheduler --preload dask_rl.pipeline.dashboard`, or
`install(client)` on one that runs already. It shows what comes through the topic `dask-rl` and through the metrics of
the workers (see live_runs), at `/learners`, `/learners.json` and `/metrics`.
"""

from typing import Any

from distributed import Client

from dask_rl.storage.errors import ConfigError, explain

from .plugin import PLUGIN_NAME, LearnersPlugin

TOPIC = PLUGIN_NAME
"""Dask's topic of what runs say of themselves."""
CONTROL_TOPIC = f"{TOPIC}-control"
"""Dask's topic of what runs are asked to do."""

__all__ = [
    "CONTROL_TOPIC",
    "PLUGIN_NAME",
    "TOPIC",
    "LearnersPlugin",
    "dask_setup",
    "install",
    "install_dashboard",
    "page_of",
]


def dask_setup(scheduler: Any) -> None:
    """Add the page to a scheduler that is starting; Dask calls this for `--preload`."""
    scheduler.add_plugin(LearnersPlugin(), idempotent=True)  # it is started with the scheduler


def install_dashboard(client: Client) -> str:
    """Add the page to the scheduler of a client, where it is not there yet.

    Runs that began before are shown with what the scheduler still remembers of them.

    Args:
        client: of any cluster whose scheduler can import dask_rl.

    Returns:
        The page's address; "" where the scheduler has no dashboard.

    Raises:
        ConfigError: the scheduler cannot import dask_rl.
    """
    try:
        client.register_plugin(LearnersPlugin())
    except Exception as error:  # whatever its unpickling raised there comes back as it is
        raise ConfigError(
            explain(
                f"scheduler at {client.scheduler.address}",
                got=" ".join(f"{type(error).__name__}: {error}".split()),
                allowed="one that can import dask_rl",
                fix="install dask-rl of this version where the scheduler runs",
            )
        ) from None
    return page_of(client)


install = install_dashboard


def page_of(client: Client) -> str:
    """Return the address of the learners page of a client's cluster; "" where the scheduler has no dashboard."""
    link = client.dashboard_link or ""
    return link.removesuffix("status") + "learners" if link else ""
