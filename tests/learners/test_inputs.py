"""Every form of input: its shares for any number of learners, and its rows."""

import pytest
import torch
from distributed import Client
from group_cases import Sharded, group_config, make_episode, make_multi_agent_episode, rows_of
from learner_cases import ShardedSource

from dask_rl.learners.inputs import (
    EpisodeBatches,
    Passes,
    are_futures,
    batch_input,
    episode_input,
    future_input,
    iterator_input,
)
from dask_rl.learners.iterator import Iterables
from dask_rl.storage.errors import ConfigError

CONFIG = group_config(2)


def test_shared_data_is_shared_anew_among_any_number():
    given = iterator_input(Sharded(), 5, 2, Iterables())
    for size in (1, 2, 4):
        shares = given.shares(size)
        assert len(shares) == size
        assert [share["num_iters"] for share in shares] == [5] * size
        assert sorted(shard for share in shares for shard in share["source"].shards) == [0, 1, 2, 3]
    assert given.count_rows() == 5 * 12
    assert not given.shuffle


def test_sources_are_for_one_learner_each():
    sources = [ShardedSource("continuous", (rank, rank + 2)) for rank in range(2)]
    given = iterator_input(sources, 3, 2, Iterables())
    assert [share["source"] for share in given.shares(2)] == sources
    assert sum(given.count_rows()) == 3 * 12
    with pytest.raises(ConfigError, match=r"iterators: got 2; allowed: 1, one per learner.*SharedData"):
        given.shares(1)
    with pytest.raises(ConfigError, match="iterators: got 2; allowed: 3, one per learner"):
        iterator_input(sources, 3, 3, Iterables())


def test_rows_of_iterables_are_those_that_would_come_next():
    iterables = Iterables()
    lists = [[rows_of(2), rows_of(3)], [rows_of(5), rows_of(7)]]
    assert sum(iterator_input(lists, 1, 2, iterables).count_rows()) == 2 + 5
    iterables.taken = 1
    assert sum(iterator_input(lists, 2, 2, iterables).count_rows()) == (3 + 2) + (7 + 5)


class Watched:
    """Counts the batches that are taken from it."""

    def __init__(self, *rows):
        self.rows, self.num_given = rows, 0

    def __iter__(self):
        for rows in self.rows:
            self.num_given += 1
            yield rows_of(rows)


def test_batches_are_looked_at_when_somebody_asks_and_once_at_most():
    iterables, given = Iterables(), [Watched(2, 3, 4)]
    counts = [iterator_input(given, 1, 1, iterables).count_rows() for _ in range(3)]
    assert given[0].num_given == 0
    assert [sum(count) for count in counts] == [2, 2, 2]
    assert given[0].num_given == 1
    iterables.taken = 10**9 * 3 + 2
    assert sum(iterator_input(given, 1, 1, iterables).count_rows()) == 4
    assert sum(iterator_input(given, 10**9, 1, iterables).count_rows()) == (10**9 - 1) // 3 * 9 + 4
    assert given[0].num_given == 3, "another epoch is as the first"
    assert sum(iterator_input([Watched()], 5, 1, iterables).count_rows()) == 0


def test_rows_of_a_call_are_those_that_would_have_come_next_then():
    iterables, given = Iterables(), [Watched(2, 3, 4)]
    count = iterator_input(given, 1, 1, iterables).count_rows()
    iterables.taken = 1
    iterator_input([Watched(7)], 1, 1, iterables)
    assert sum(count) == 2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_batch_is_split_evenly(size):
    given = batch_input(rows_of(7), Passes(num_epochs=2, minibatch_size=2, shuffle=True), 2)
    shares = given.shares(size)
    parts = [share["batch"]["default_module"]["rewards"] for share in shares]
    assert torch.equal(torch.cat(parts), rows_of(7)["rewards"])
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert len({share["num_minibatches"] for share in shares}) == 1
    assert all(share["minibatch_size"] == 2 and share["episodes"] is None for share in shares)
    assert given.count_rows() == 7
    assert given.shuffle


def test_a_module_that_not_every_learner_can_have_is_skipped_on_all():
    given = batch_input({"a": rows_of(1), "b": rows_of(4)}, Passes(), 2)
    assert [share["modules_to_skip"] for share in given.shares(2)] == [frozenset({"a"})] * 2
    assert [share["modules_to_skip"] for share in given.shares(1)] == [frozenset()]
    assert given.count_rows() == 5


def test_what_is_wrong_is_said_at_once():
    with pytest.raises(ConfigError):
        batch_input(rows_of(0), Passes(), 2)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_episodes_are_shared_out_whole_or_in_parts(size):
    episodes = [make_episode(5, 0), make_episode(4, 1)]
    given = episode_input(episodes, Passes(minibatch_size=3), 2, CONFIG)
    shares = given.shares(size)
    rows = [sum(len(part.episode) - part.num_lookback for part in share["episodes"]) for share in shares]
    assert sum(rows) == given.count_rows() == 9
    assert max(rows) - min(rows) <= 1
    assert all(share["batch"] is None and share["minibatch_size"] == 3 for share in shares)
    assert len({share["num_minibatches"] for share in shares}) == 1


def test_steps_of_all_agents_count():
    config = group_config(1)
    assert episode_input([make_multi_agent_episode([4, 6], 0)], Passes(), 1, config).count_rows() == 10


def test_episode_batches_begin_anew_and_take_single_episodes_or_lists():
    batches = EpisodeBatches([make_episode(3, 0), [make_episode(2, 1), make_episode(4, 2)]], CONFIG)
    for _ in range(2):
        assert [len(batch["default_module"]["rewards"]) for batch in batches] == [3, 6]
    assert next(iter(batches))["default_module"]["observations"].dtype == torch.float64


@pytest.fixture(scope="module")
def client():
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with Client(set_as_default=False, **options) as client:
        yield client


def test_futures_of_batches_are_one_each_and_of_episodes_are_shared_out(client):
    futures = [client.submit(rows_of, rows) for rows in (2, 3)]
    given = future_input(futures, Passes(num_epochs=2, minibatch_size=4, shuffle=True), 2, of_episodes=False)
    assert [share["future_keys"] for share in given.shares(2)] == [(future.key,) for future in futures]
    assert [share["num_minibatches"] for share in given.shares(2)] == [None, None]
    assert [(share["num_epochs"], share["minibatch_size"]) for share in given.shares(2)] == [(2, 4)] * 2
    assert given.count_rows().result(20) == 5
    with pytest.raises(ConfigError, match="futures of batches: got 2; allowed: 3, one per learner"):
        given.shares(3)
    lists = [client.submit(lambda seed: [make_episode(seed + 2, seed)], seed) for seed in range(3)]
    given = future_input(lists, Passes(), 2, of_episodes=True)
    assert [share["future_keys"] for share in given.shares(2)] == [(lists[0].key, lists[1].key), (lists[2].key,)]
    assert all(share["futures_are_episodes"] for share in given.shares(2))
    assert given.count_rows().result(20) == 2 + 3 + 4
    assert are_futures(lists)


def test_only_a_list_of_futures_is_one():
    assert not are_futures([])
    assert not are_futures([rows_of(1)])
