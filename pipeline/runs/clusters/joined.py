"""A cluster that runs already, by its address or its scheduler file."""

import gc
import json
from pathlib import Path

from distributed import Client
from distributed.security import Security

from dask_rl.storage.errors import ConfigError, explain

from .config import ClusterConfig
from .local import first_line


def connect(config: ClusterConfig, security: Security | None, *, set_as_default: bool = True) -> Client:
    """Connect to the scheduler that the config names, whatever workers it has.

    Args:
        config: of kind address or scheduler_file.
        security: credentials, as `open_security` returns them.
        set_as_default: whether Dask's own functions use this client from now on.

    Raises:
        ConfigError: none answers there, or the file is not a scheduler's.
    """
    if config.scheduler_file is not None:
        _check_scheduler_file(Path(config.scheduler_file))
    asked = config.address or config.scheduler_file
    options = {"timeout": config.startup_timeout_seconds, "security": security, "set_as_default": set_as_default}
    try:
        return Client(**{config.kind: asked}, **options)
    except (OSError, ValueError, RuntimeError, TypeError) as error:  # the last two: TLS on one side only
        problem = first_line(error)
    # What did not connect closes itself when it is collected, and would hang in the midst of another client's start.
    gc.collect()
    raise ConfigError(
        explain(
            f"cluster.{config.kind}",
            got=f"{asked}, where no scheduler answers ({problem})",
            fix="start `dask scheduler`, or correct it; where it uses TLS, set cluster.security",
        )
    )


def _check_scheduler_file(path: Path) -> None:
    """Refuse what no scheduler wrote: Dask would start one of its own, or fail without a word."""
    try:
        json.loads(path.read_bytes())["address"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        got = f"{path}: {getattr(error, 'strerror', None) or 'no file of a scheduler'}"
        fix = "start `dask scheduler --scheduler-file FILE` first, or correct the path"
        raise ConfigError(explain("cluster.scheduler_file", got=got, fix=fix)) from None
