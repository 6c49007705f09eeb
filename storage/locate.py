"""From what a user writes to a location: a path, or a URL that fsspec knows."""

import os

from .errors import ConfigError, explain
from .location import LocalDirectory, Location
from .remote.address import as_url, has_password, redact
from .remote.directory import RemoteDirectory


def local_path(path: str | os.PathLike[str]) -> str | None:
    """Return the path on this machine, None for a URL of another place."""
    url = as_url(os.fspath(path))
    if url is None:
        return os.fspath(path)
    return url.removeprefix("file://") if url.startswith("file://") else None


def locate(path: str | os.PathLike[str]) -> Location:
    """Return the location of a dataset from a path or a URL."""
    local = local_path(path)
    return RemoteDirectory(as_url(os.fspath(path)) or "") if local is None else LocalDirectory(local)


def check_no_password(subject: str, path: str) -> None:
    """Raise ConfigError where a URL that will be written down holds a password."""
    if has_password(path):
        raise ConfigError(
            explain(
                subject,
                got=f"a password in the URL {redact(path)}",
                allowed="a URL without one: this is written down",
                fix="give it where the protocol's package looks for credentials, or in fsspec's configuration",
            )
        )
