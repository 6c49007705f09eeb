"""Scheduled times: UTC, whole seconds; they name runs."""

from datetime import UTC, datetime

from dask_rl.storage.errors import ConfigError, explain

FOLDER_FORMAT = "%Y-%m-%dT%H-%M-%SZ"
"""Of a run's directory: no colons, and in the order of time."""


def now() -> datetime:
    """Return the present."""
    return datetime.now(UTC)


def whole_seconds(time: datetime) -> datetime:
    """Return a time in UTC without its fraction of a second."""
    return time.astimezone(UTC).replace(microsecond=0)


def parse_time(text: str) -> datetime:
    """Read an ISO 8601 time, or the name of a run's directory; without a zone it is UTC.

    Raises:
        ConfigError: it is neither.
    """
    try:
        return datetime.strptime(text, FOLDER_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text)
        return whole_seconds(time if time.tzinfo else time.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        allowed, fix = "an ISO 8601 time such as 2027-01-31T02:00:00Z", "write it so"
        raise ConfigError(explain("time", got=repr(text), allowed=allowed, fix=fix)) from None


def folder_name(time: datetime) -> str:
    """Return the name of the directory of the run that was due then."""
    return time.astimezone(UTC).strftime(FOLDER_FORMAT)


def iso(time: datetime) -> str:
    """Return a time in UTC as text that sorts like times."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
