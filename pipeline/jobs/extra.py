"""APScheduler and SQLAlchemy, which only those need who schedule here: one clear error where they are missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from dask_rl.storage.errors import ConfigError, explain


@contextmanager
def needs_extra() -> Iterator[None]:
    """Import inside what the extra `jobs` brings.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("apscheduler", "sqlalchemy", "tzlocal"):
            raise
        got, fix = f"no package {error.name}", "pip install 'dask-rl[jobs]'"
        raise ConfigError(explain("dask-rl jobs", got=got, allowed="what the extra `jobs` brings", fix=fix)) from None
