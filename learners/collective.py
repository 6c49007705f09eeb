"""Exchange between learners. The only file that knows torch.distributed."""

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from dask_rl.storage.errors import ConfigError, PeersLostError, explain


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of one generation of a group meet: rank 0's store."""

    host: str
    port: int
    generation: int


class Collective(Protocol):
    """What a learner asks of its peers. Every call blocks until all ranks have made it."""

    rank: int
    size: int

    @property
    def is_open(self) -> bool:
        """Whether this rank can exchange: not after `close`."""
        ...

    def all_reduce_(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` on every rank by the sum over the ranks; the same bits everywhere."""
        ...

    def broadcast_(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Replace `tensor` on every rank by that of `source`."""
        ...

    def barrier(self) -> None:
        """Wait for all ranks."""
        ...

    def set_timeout(self, seconds: float) -> None:
        """Bound each later call."""
        ...

    def close(self) -> None:
        """Leave the group; peers that wait for this rank get an error at once."""
        ...


class SingleProcess:
    """A group of one: nothing to exchange."""

    rank = 0
    size = 1
    is_open = True

    def all_reduce_(self, tensor: torch.Tensor) -> None:
        """Do nothing: the sum over one rank."""

    def broadcast_(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Do nothing."""

    def barrier(self) -> None:
        """Do nothing."""

    def set_timeout(self, seconds: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class RendezvousStore:
    """Rank 0's key-value store on a free port of its own address only; one a generation."""

    def __init__(self, host: str, generation: int, timeout_seconds: float) -> None:
        # A TCPStore by itself would listen on all interfaces.
        with socket.create_server((host, 0), family=_family(host)) as listener:
            self.store = TCPStore(
                host,
                listener.getsockname()[1],
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_seconds),
                use_libuv=True,
                master_listen_fd=listener.fileno(),
            )
            listener.detach()  # the store closes it
        self.rendezvous = Rendezvous(host, self.store.port, generation)


class ProcessGroup:
    """Ranks that exchange over gloo (any hosts) or NCCL (a GPU each).

    A private group, not torch's default one: a process may hold others beside it. Gloo listens on the interface of
    the learner's own address only.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        rank: int,
        size: int,
        *,
        transport: str,
        timeout_seconds: float,
        store: RendezvousStore | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self._timeout = timedelta(seconds=timeout_seconds)
        own = store.store if store is not None else _connect(rendezvous, rank, self._timeout)
        self._store: Store | None = own  # kept open until `close`
        prefixed = PrefixStore(str(rendezvous.generation), own)
        try:
            self._group: Any = _TRANSPORTS[transport](prefixed, rank, size, self._timeout, _own_address(rendezvous))
            self.barrier()
        except RuntimeError as error:
            raise _translate(error, "joining the learner group", self._timeout) from None

    @property
    def is_open(self) -> bool:
        """Whether it has not been left."""
        return self._group is not None

    def all_reduce_(self, tensor: torch.Tensor) -> None:
        """Sum over the ranks, in place."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM)
        options.timeout = self._timeout
        self._wait(lambda: self._group.allreduce([tensor], options), "exchanging gradients")

    def broadcast_(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Copy from `source`, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        options.timeout = self._timeout
        self._wait(lambda: self._group.broadcast([tensor], options), "copying state from another learner")

    def barrier(self) -> None:
        """Wait for all ranks."""
        options = dist.BarrierOptions()
        options.timeout = self._timeout
        self._wait(lambda: self._group.barrier(options), "waiting for all learners")

    def set_timeout(self, seconds: float) -> None:
        """Bound each later call."""
        self._timeout = timedelta(seconds=seconds)

    def close(self) -> None:
        """Close the connections; NCCL kernels that wait for a lost peer are aborted."""
        group, self._group = self._group, None
        self._store = None  # its sockets and thread go now, not when this object is collected
        if group is not None and hasattr(group, "abort"):
            group.abort()

    def _wait(self, start: Any, what: str) -> None:
        if self._group is None:
            raise PeersLostError(explain(what, got="a group that was left", fix="join the next generation"))
        try:
            start().wait(self._timeout)
        except RuntimeError as error:
            raise _translate(error, f"learner {self.rank} of {self.size}, {what}", self._timeout) from None


def _connect(rendezvous: Rendezvous, rank: int, timeout: timedelta) -> TCPStore:
    try:
        return TCPStore(rendezvous.host, rendezvous.port, is_master=False, timeout=timeout)
    except RuntimeError as error:
        where = f"learner {rank} connecting to {rendezvous.host}:{rendezvous.port}"
        raise _translate(error, where, timeout) from None


def _translate(error: RuntimeError, what: str, timeout: timedelta) -> PeersLostError:
    """Tell a peer that is gone from one that is late; both are consequences of what befell that peer."""
    text = str(error).splitlines()[0]
    if "imed out" in text or "timeout" in text.lower():
        return PeersLostError(
            explain(
                what,
                got=f"no answer from its peers in {timeout.total_seconds():g} s",
                fix="look for a learner that hangs, or raise learners.collective_timeout_seconds",
            )
        )
    return PeersLostError(explain(what, got=f"a lost connection ({text[:200]})", fix="look at the other learners"))


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _own_address(rendezvous: Rendezvous) -> str:
    """Return the local address that faces the rendezvous."""
    with socket.socket(_family(rendezvous.host), socket.SOCK_DGRAM) as probe:
        probe.connect((rendezvous.host, rendezvous.port))
        return str(probe.getsockname()[0])


def _gloo(store: Store, rank: int, size: int, timeout: timedelta, address: str) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._threads = 1
    options._devices = [gloo.create_device(hostname=address)]
    return gloo(store, rank, size, options)


def _nccl(store: Store, rank: int, size: int, timeout: timedelta, address: str) -> Any:
    if not dist.is_nccl_available():
        raise ConfigError(
            explain(
                "learners.transport",
                got="nccl",
                allowed="gloo: this torch has no NCCL",
                fix="set gloo or auto",
            )
        )
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


_TRANSPORTS = {"gloo": _gloo, "nccl": _nccl}
