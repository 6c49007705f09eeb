"""What a failed request means, whatever package speaks the protocol: each has exceptions of its own."""

import asyncio
from collections.abc import Iterator
from enum import Enum
from typing import Any

from dask_rl.storage.errors import DatasetError, DatasetNotFoundError, StoreAccessError, StoreUnreachableError, explain

from .address import redact

_MAX_REASON = 300


class Fault(Enum):
    """Kinds of failure, by what helps."""

    MISSING = "there is no such object"
    EXISTS = "there is one already"
    DENIED = "credentials are missing or do not suffice"
    REFUSED = "the same request would be refused again"
    TRANSIENT = "another try may succeed"


_BY_STATUS = {
    401: Fault.DENIED,
    403: Fault.DENIED,
    404: Fault.MISSING,
    407: Fault.DENIED,
    408: Fault.TRANSIENT,
    409: Fault.TRANSIENT,
    410: Fault.MISSING,
    412: Fault.EXISTS,
    425: Fault.TRANSIENT,
    429: Fault.TRANSIENT,
    501: Fault.REFUSED,
}
_BY_TYPE = (
    (FileExistsError, Fault.EXISTS),
    (PermissionError, Fault.DENIED),
    ((FileNotFoundError, NotADirectoryError, IsADirectoryError), Fault.MISSING),
    ((ValueError, TypeError, LookupError, AttributeError, ImportError, NotImplementedError), Fault.REFUSED),
)
_NO_CONNECTION = (ConnectionError, TimeoutError, asyncio.TimeoutError)
_CLIENTS = ("aiohttp", "botocore", "aiobotocore", "urllib3", "requests", "httpx")
_CREDENTIALS = ("Credential", "TokenRetrieval", "RefreshError", "ClientAuthenticationError")


def classify(error: BaseException) -> Fault:
    """Return what kind of failure an exception tells of.

    The answer's status comes first: some packages say "not found" for whatever befalls them.
    """
    chain = list(_causes(error))
    for status in filter(None, map(_status, chain)):
        return _BY_STATUS.get(status, Fault.TRANSIENT if status >= 500 else Fault.REFUSED)
    for cause in chain:
        if any(word in type(cause).__name__ for word in _CREDENTIALS):
            return Fault.DENIED
    for cause in chain:
        if isinstance(cause, _NO_CONNECTION) or type(cause).__module__.partition(".")[0] in _CLIENTS:
            return Fault.TRANSIENT
    for kinds, fault in _BY_TYPE:
        if isinstance(error, kinds):
            return fault
    return Fault.TRANSIENT


def explain_fault(fault: Fault, subject: str, error: BaseException, tried: str) -> DatasetError:
    """Return the error for the user.

    Args:
        fault: what kind of failure.
        subject: which object of which dataset.
        error: the last failure.
        tried: how often and how long, for failures that were tried again.
    """
    reason = describe(error)
    if fault is Fault.MISSING:
        return DatasetNotFoundError(explain(subject, got="no such object", fix="check the address"))
    if fault is Fault.DENIED:
        return StoreAccessError(
            explain(
                subject,
                got=f"no permission ({reason})",
                allowed="credentials that suffice",
                fix="give them where the protocol's package looks for them, or in fsspec's configuration",
            )
        )
    if fault is Fault.TRANSIENT:
        return StoreUnreachableError(
            explain(
                subject,
                got=f"no answer that can be used {tried}; the last: {reason}",
                allowed="a store that answers",
                fix="check the address, the network and the store, and run the same again",
            )
        )
    return DatasetError(
        explain(subject, got=reason, allowed="a request that the store serves", fix="check the address")
    )


def describe(error: BaseException) -> str:
    """Return what an exception says, on one line and without secrets."""
    said = next((text for text in (" ".join(str(cause).split()) for cause in _causes(error)) if text), "")
    name = type(error).__name__
    return redact(f"{name}: {said}" if said else name)[:_MAX_REASON]


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _status(error: Any) -> int | None:
    """Return the status of the answer that an exception of one of the usual packages carries."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        code = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return code if type(code) is int else None
    names = ["status", "status_code"]
    if not type(error).__module__.startswith("aiohttp"):  # there it tells of its parser
        names.append("code")
    for holder, name in ((response, "status_code"), *((error, name) for name in names)):
        code = getattr(holder, name, None)
        if type(code) is int and 300 <= code < 600:
            return code
    return None
