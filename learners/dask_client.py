"""The Dask client of a group, which its owner, or that of its cluster, may close at any time."""

import contextlib
from collections.abc import Iterator

from distributed import Client
from distributed.client import ClosedClientError

from dask_rl.storage.errors import LearnerLostError, explain

CLIENT_CLOSED = "the Dask client was closed"


def is_closed(client: Client) -> bool:
    """Tell whether nothing goes through a client any more."""
    is_over: bool = client.loop.asyncio_loop.is_closed()
    return is_over or client.status in ("closing", "closed")


@contextlib.contextmanager
def noticing_its_end() -> Iterator[None]:
    """Raise OSError where the client is closed in the midst of a call; Dask's own errors are not to be told apart."""
    try:
        yield
    except (ClosedClientError, UnboundLocalError):  # the latter where Dask's event loop cancels what it was to wait for
        raise OSError(CLIENT_CLOSED) from None


def client_closed(client: Client) -> LearnerLostError:
    """Return the error for a client that was closed under a group."""
    cluster = getattr(client, "cluster", None)
    is_with_cluster = cluster is not None and cluster.status.name in ("closing", "closed")
    subject, got = (
        ("Dask cluster (its scheduler)", "a closed one") if is_with_cluster else ("Dask client", "a closed one")
    )
    allowed = "one that stays open until the group is shut down"
    fix = "open another one, and make a new LearnerGroup with it"
    return LearnerLostError(explain(subject, got=got, allowed=allowed, fix=fix))
