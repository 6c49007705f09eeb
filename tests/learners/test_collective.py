"""One suite for every way to exchange; lost and silent peers."""

import os
import signal
import time

import psutil
import pytest
import torch
from learner_peers import HOST, join_and_hold, join_group, leave, run_in_threads

from dask_rl.learners.collective import ProcessGroup, Rendezvous, RendezvousStore, SingleProcess
from dask_rl.storage.errors import LearnerLostError, PeersLostError


def exchange(collective):
    """Every operation once, on awkward sizes; the results."""
    rank, size = collective.rank, collective.size
    out = {}
    for dtype in (torch.float32, torch.float64, torch.int64):
        for length in (1, 3, 1000):
            tensor = (torch.arange(length, dtype=dtype) + 1) * (rank + 1)
            collective.all_reduce_(tensor)
            out[f"sum {dtype} {length}"] = tensor.clone()
    torch.manual_seed(rank)
    random = torch.randn(4097)
    part = random[5:4000]  # a view, not aligned
    collective.all_reduce_(part)
    out["random"] = part.clone()
    out["outside"] = (random[:5].clone(), random[4000:].clone())
    for source in range(size):
        tensor = torch.full((6,), float(rank))
        collective.broadcast_(tensor, source)
        assert (tensor == source).all()
    collective.barrier()
    collective.set_timeout(5)
    collective.barrier()
    out["rank"] = rank
    return out


def check(results):
    size = len(results)
    factor = size * (size + 1) // 2
    assert [result["rank"] for result in results] == list(range(size))
    for dtype in (torch.float32, torch.float64, torch.int64):
        for length in (1, 3, 1000):
            expected = (torch.arange(length, dtype=dtype) + 1) * factor
            for result in results:
                assert torch.equal(result[f"sum {dtype} {length}"], expected)
    for rank, result in enumerate(results):
        assert torch.equal(result["random"], results[0]["random"]), "not the same bits everywhere"
        generator = torch.Generator().manual_seed(rank)
        own = torch.randn(4097, generator=generator)
        assert torch.equal(result["outside"][0], own[:5])
        assert torch.equal(result["outside"][1], own[4000:])


def exchange_in_process(rank, rendezvous):
    collective = join_group(rank, 2, rendezvous)
    out = exchange(collective)
    collective.close()
    collective.close()  # twice is once
    return out


def test_single_process():
    collective = SingleProcess()
    check([exchange(collective)])
    collective.close()


def test_two_processes(peers):
    for generation in (1, 2):  # a group, and its successor
        store = RendezvousStore(HOST, generation, 20)
        check(peers.run(exchange_in_process, store.rendezvous))


@pytest.mark.parametrize("size", [1, 3, 4])
def test_ranks_in_threads_and_rank_0_with_the_store(size):
    results = run_in_threads(size, lambda collective: (collective.size, collective.rank))
    assert results == [(size, rank) for rank in range(size)]
    sums = run_in_threads(size, lambda c: (c.all_reduce_(t := torch.ones(3)), t)[1])
    assert all((t == size).all() for t in sums)


def meet(peers, peer_rank, timeout_seconds):
    """A group of a spawned process and this one."""
    store = RendezvousStore(HOST, 1, 20)
    peers.send(0, join_and_hold, peer_rank, store.rendezvous)
    mine = join_group(1 - peer_rank, 2, store.rendezvous, timeout_seconds)
    return store, mine, peers.receive(0)


@pytest.mark.parametrize("peer_rank", [0, 1])
def test_a_silent_peer_is_waited_for_until_the_time_limit(peers, peer_rank):
    _store, mine, _ = meet(peers, peer_rank, 10)
    mine.set_timeout(1)
    start = time.monotonic()
    with pytest.raises(PeersLostError, match=r"exchanging gradients: got no answer from its peers in 1 s; look"):
        mine.all_reduce_(torch.ones(1000))
    assert 0.9 < time.monotonic() - start < 5
    mine.close()
    peers.send(0, leave)
    peers.receive(0)


def test_a_stopped_peer_is_a_silent_one(peers):
    _store, mine, pid = meet(peers, 1, 10)
    mine.set_timeout(1)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(PeersLostError):
            mine.barrier()
    finally:
        os.kill(pid, signal.SIGCONT)
    mine.close()
    peers.send(0, leave)
    peers.receive(0)


def test_a_peer_that_leaves_is_noticed_at_once(peers):
    _store, mine, _ = meet(peers, 1, 30)
    peers.send(0, leave)
    peers.receive(0)
    start = time.monotonic()
    with pytest.raises(LearnerLostError, match="lost connection"):
        mine.all_reduce_(torch.ones(1000))
    assert time.monotonic() - start < 5
    mine.close()


@pytest.mark.parametrize("peer_rank", [0, 1])
def test_a_killed_peer_is_noticed_at_once(peers, peer_rank):
    _store, mine, _ = meet(peers, peer_rank, 30)
    peers.kill(0)
    start = time.monotonic()
    with pytest.raises(LearnerLostError, match=rf"learner {1 - peer_rank} of 2, exchanging gradients: got a lost"):
        mine.all_reduce_(torch.ones(1000))
    assert time.monotonic() - start < 5
    mine.close()
    with pytest.raises(LearnerLostError, match="a group that was left"):
        mine.barrier()


def test_a_meeting_that_nobody_comes_to():
    store = RendezvousStore(HOST, 1, 20)
    with pytest.raises(PeersLostError, match=r"joining the learner group: got no answer from its peers in 1 s"):
        ProcessGroup(store.rendezvous, 0, 2, transport="gloo", timeout_seconds=1, store=store)


def test_a_store_that_is_gone():
    store = RendezvousStore(HOST, 1, 5)
    where = Rendezvous(HOST, store.rendezvous.port, 1)
    del store
    with pytest.raises((LearnerLostError, PeersLostError), match=rf"learner 1 connecting to {HOST}:{where.port}"):
        ProcessGroup(where, 1, 2, transport="gloo", timeout_seconds=1)


def test_the_store_listens_on_its_own_address_only():
    store = RendezvousStore(HOST, 1, 5)
    listening = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert [address.ip for address in listening if address.port == store.rendezvous.port] == [HOST]
    store.store.set("key", "value")  # and it is at work
    assert store.store.get("key") == b"value"
