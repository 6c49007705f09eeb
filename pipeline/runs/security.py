"""TLS between client, scheduler and workers, in the words of Dask's `Security`."""

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from distributed.security import Security
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dask_rl.storage.errors import ConfigError, explain

from .config_errors import validate

_ROLES = ("client", "scheduler", "worker")
_HANDSHAKE_ROUNDS = 3  # TLS 1.2 needs them all


class SecurityFiles(BaseModel):
    """PEM files of one authority: whoever holds a certificate signed by it takes part, nobody else does."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    ca_file: str = Field(min_length=1)
    """Certificate of the authority that signs those of client, scheduler and workers."""
    cert: str = Field(min_length=1)
    """Certificate that this process, and the workers that it starts, show."""
    key: str = Field(min_length=1)
    """Private key of `cert`, without a passphrase; scheduler and workers that are started here read it too."""


def _parse(value: Any) -> Any:
    """Check it as one of the two forms: pydantic would list the problems of both."""
    if isinstance(value, Mapping):
        return validate(SecurityFiles, value, "cluster.security")
    if value is None or value == "temporary" or isinstance(value, SecurityFiles):
        return value
    allowed = "temporary, or {ca_file, cert, key}"
    raise ConfigError(explain("cluster.security", got=repr(value), allowed=allowed, fix="use one of these"))


SecurityConfig = Annotated[Literal["temporary"] | SecurityFiles | None, BeforeValidator(_parse)]
"""temporary: credentials made for this one cluster, in memory only; or files; None: as Dask is configured."""


def open_security(config: SecurityConfig) -> Security | None:
    """Return the credentials; None leaves the choice to Dask's own configuration.

    Raises:
        ConfigError: a file that is missing, no PEM, locked with a passphrase, the key of another certificate or
            one that the authority did not sign; or `temporary` without the package cryptography.
    """
    if config is None:
        return None
    return _temporary() if config == "temporary" else _from_files(config)


def _temporary() -> Security:
    try:
        return Security.temporary()
    except ImportError:
        message = explain(
            "cluster.security",
            got="temporary, and the package cryptography is not installed",
            allowed="files of your own: {ca_file, cert, key}",
            fix="pip install 'dask-rl[tls]'",
        )
        raise ConfigError(message) from None


def _from_files(config: SecurityFiles) -> Security:
    # Absolute: workers may run elsewhere.
    ca_file, cert, key = (str(Path(name).absolute()) for name in (config.ca_file, config.cert, config.key))
    for name, path in (("ca_file", ca_file), ("cert", cert)):
        _check(name, path, partial(ssl.SSLContext.load_verify_locations, cafile=path), "a PEM certificate")
    allowed = f"the PEM key of {cert}, without a passphrase"
    _check("key", key, lambda context: context.load_cert_chain(cert, key, password=_no_passphrase), allowed)
    roles = {f"tls_{role}_{what}": path for role in _ROLES for what, path in (("cert", cert), ("key", key))}
    security = Security(require_encryption=True, tls_ca_file=ca_file, **roles)
    _check("cert", cert, lambda context: _shake_hands(security), f"a certificate that {ca_file} signed, in force")
    return security


def _check(name: str, path: str, load: Callable[[ssl.SSLContext], None], allowed: str) -> None:
    """Read a file as Dask will; its own errors come late, in another process, or ask the terminal for a passphrase."""
    try:
        with open(path, "rb"):
            pass
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError, a null byte in a path a ValueError
        reason = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
        got = f"{path}: {reason or _reason(error)}"
        raise ConfigError(explain(f"cluster.security.{name}", got=got, allowed=allowed, fix="correct it")) from None


def _shake_hands(security: Security) -> None:
    """Meet in memory as client and scheduler will; in earnest Dask would try again until a timeout."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = security.get_connection_args("client")["ssl_context"].wrap_bio(to_client, to_server)
    server = security.get_listen_args("scheduler")["ssl_context"].wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server) * _HANDSHAKE_ROUNDS:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()


def _reason(error: Exception) -> str:
    reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
    return str(reason or error or "not usable").replace("_", " ").lower()


def _no_passphrase() -> str:
    raise ValueError("locked with a passphrase")
