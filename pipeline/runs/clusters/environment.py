"""Dask's settings as environment variables, for schedulers and workers that are started elsewhere."""

from collections.abc import Mapping
from typing import Any

from dask_rl.learners.own_cluster import cluster_settings

_SPAWN = "distributed.nanny.pre-spawn-environ."


def settings_environment(worker_ttl_seconds: float) -> dict[str, str]:
    """Return the variables by which a scheduler and its workers are set up for learners."""
    return as_environment(cluster_settings(worker_ttl_seconds))


def as_environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as the variables that Dask reads: `a.b-c` is DASK_A__B_C, with a Python literal.

    What nannies set in their workers' environment is that variable itself: it comes to the workers all the same, and
    its name would not survive Dask's lower case.
    """
    variables = {}
    for key, value in settings.items():
        if key.startswith(_SPAWN):
            variables[key.removeprefix(_SPAWN)] = str(value)
        else:
            name = key.upper().replace(".", "__").replace("-", "_")
            variables[f"DASK_{name}"] = value if isinstance(value, str) else repr(value)
    return variables
