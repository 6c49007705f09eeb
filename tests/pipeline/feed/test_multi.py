"""The feeds of several modules: each as if it were alone, shared out together."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dask_rl.learners.iterator import BatchSource, SharedData
from dask_rl.pipeline.feed.blocks import Arrays, BlockPlan
from dask_rl.pipeline.feed.config import FeedConfig
from dask_rl.pipeline.feed.loaders import ThreadLoader
from dask_rl.pipeline.feed.multi_iterator import MultiIterator
from dask_rl.pipeline.feed.multi_source import MultiFeedPlan, MultiSource
from dask_rl.pipeline.feed.source import DatasetSource, FeedPlan, open_iterator, plan_feed
from dask_rl.storage.errors import ConfigError, CorruptDataError, DatasetError

CPU = torch.device("cpu")
Rows = dict[str, Arrays]


def feed_of(path: Path, **changes: Any) -> FeedConfig:
    fields = ("observations", "actions", "rewards", "next_observations")
    config = FeedConfig(dataset=str(path), fields=fields, batch_size=24, num_shards=4, seed=5)
    return replace(config, **{"block_rows": 16, "window_rows": 48, **changes})


@pytest.fixture(scope="module")
def plans(feed_dataset: Path, other_dataset: Path) -> dict[str, FeedPlan]:
    return {
        "walk": plan_feed(feed_of(feed_dataset)),
        "run": plan_feed(feed_of(other_dataset, fields=("observations", "actions"), resident=False)),
    }


def read(source: BatchSource, num_steps: int, start: int = 0) -> list[Rows]:
    iterator = source.open(CPU, 30.0)
    try:
        iterator.seek(start)
        return [take(iterator) for _ in range(num_steps)]
    finally:
        iterator.close()


def take(iterator: Any) -> Rows:
    batch = iterator.next_batch()
    modules = batch if isinstance(iterator, MultiIterator) else {"": batch}
    return {
        module_id: {name: tensor.numpy().copy() for name, tensor in fields.items()}
        for module_id, fields in modules.items()
    }


def assert_equal(got: Rows, expected: Rows) -> None:
    assert got.keys() == expected.keys()
    for module_id, fields in expected.items():
        assert got[module_id].keys() == fields.keys()
        for name, values in fields.items():
            assert np.array_equal(got[module_id][name], values), (module_id, name)


def global_batches(data: SharedData, num_learners: int, num_steps: int) -> list[Rows]:
    """The batches of all learners together, shard by shard."""
    parts = [read(source, num_steps) for source in data.shares(num_learners)]
    return [
        {
            module_id: {name: in_order([part[step][module_id][name] for part in parts]) for name in fields}
            for module_id, fields in parts[0][step].items()
        }
        for step in range(num_steps)
    ]


def in_order(parts: list[np.ndarray]) -> np.ndarray:
    """Put the rows of all learners, of whom i holds the data shards i, i + n, …, in the order of the shards."""
    per_shard = sum(map(len, parts)) // 4
    whole = np.empty((4, per_shard, *parts[0].shape[1:]), parts[0].dtype)
    for learner, part in enumerate(parts):
        whole[learner :: len(parts)] = part.reshape(-1, per_shard, *part.shape[1:])
    return whole


def test_each_module_gets_the_batches_that_it_would_get_alone(plans: dict[str, FeedPlan]) -> None:
    together = read(MultiFeedPlan(plans).shares(2)[1], 40)
    assert list(together[0]) == ["run", "walk"]  # sorted: all learners agree on the order
    for module_id, plan in plans.items():
        alone = read(plan.shares(2)[1], 40)
        for got, expected in zip(together, alone, strict=True):
            assert_equal({"": got[module_id]}, expected)


@pytest.mark.parametrize("several", [False, True])
def test_any_number_of_learners_shares_the_same_global_batches(plans: dict[str, FeedPlan], several: bool) -> None:
    data: SharedData = MultiFeedPlan(plans) if several else plans["walk"]
    assert isinstance(data, SharedData)
    expected = global_batches(data, 1, 30)
    num_rows = [fields["actions"].shape[0] * fields["actions"].shape[1] for fields in expected[0].values()]
    assert sum(num_rows) == data.rows_per_batch() == (48 if several else 24)
    for num_learners in (2, 3, 4):
        shares = data.shares(num_learners)
        assert len(shares) == num_learners
        for got, wanted in zip(global_batches(data, num_learners, 30), expected, strict=True):
            assert_equal(got, wanted)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("num_learners", [0, 5])
def test_shares_for_none_or_more_learners_than_shards_are_refused(
    plans: dict[str, FeedPlan], several: bool, num_learners: int
) -> None:
    data: SharedData = MultiFeedPlan(plans) if several else plans["walk"]
    with pytest.raises(ConfigError, match="num_shards: got 4; allowed: at least the number of learners"):
        data.shares(num_learners)


def test_plans_and_sources_travel(plans: dict[str, FeedPlan]) -> None:
    plan = MultiFeedPlan(plans)
    copy = cloudpickle.loads(cloudpickle.dumps(plan))
    assert copy == plan
    source = cloudpickle.loads(cloudpickle.dumps(copy.shares(3)[2]))
    assert isinstance(source, BatchSource)
    assert source == plan.shares(3)[2] != plan.shares(3)[1]
    assert_equal(read(source, 1)[0], read(plan.shares(3)[2], 1)[0])


def test_a_source_continues_the_same_feeds_of_other_shards_only(plans: dict[str, FeedPlan]) -> None:
    source = MultiFeedPlan(plans).shares(1)[0]
    for other in MultiFeedPlan(plans).shares(3):
        assert source.key == other.key
        assert source.continues(other)
        assert other.continues(source)
    seeded = replace(plans["run"], feed=replace(plans["run"].feed, seed=6))
    for different in (
        MultiFeedPlan({"walk": plans["walk"], "run": seeded}).shares(1)[0],
        MultiFeedPlan({"walk": plans["walk"]}).shares(1)[0],
        replace(source, name="other"),
        plans["walk"].shares(1)[0],
    ):
        assert not source.continues(different)
        assert not different.continues(source)


@given(steps=st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_seeking_is_the_same_as_stepping(plans: dict[str, FeedPlan], steps: list[int]) -> None:
    source = MultiFeedPlan(plans).shares(2)[0]
    expected = read(source, 62)
    iterator = source.open(CPU, 30.0)
    for step in steps:
        iterator.seek(step)
        assert_equal(take(iterator), expected[step])
        assert iterator.step == step + 1
    with pytest.raises(ConfigError, match="step: got -1; allowed: 0 or more"):
        iterator.seek(-1)
    iterator.close()


def test_a_saved_state_resumes_with_another_number_of_learners(plans: dict[str, FeedPlan]) -> None:
    plan = MultiFeedPlan(plans)
    whole, third = plan.shares(1)[0].open(CPU, 30.0), plan.shares(3)[2].open(CPU, 30.0)
    for _ in range(9):
        whole.next_batch()
    third.load_state_dict(whole.state_dict())
    assert third.step == 9
    assert third.state_dict() == whole.state_dict()
    assert_equal(take(third), read(plan.shares(3)[2], 1, start=9)[0])
    whole.close()
    third.close()


def test_a_state_of_other_feeds_is_refused_and_the_module_named(plans: dict[str, FeedPlan]) -> None:
    iterator = MultiFeedPlan(plans).shares(1)[0].open(CPU, 30.0)
    state = iterator.state_dict()
    with pytest.raises(ConfigError, match=r"iterator state: got modules walk; allowed: run, walk;"):
        iterator.load_state_dict(state | {"parameters": {"walk": state["parameters"]["walk"]}})
    other = state["parameters"] | {"run": state["parameters"]["run"] | {"seed": 6}}
    with pytest.raises(ConfigError, match=r"module run: iterator state: got \{'seed': '6'\}"):
        iterator.load_state_dict(state | {"parameters": other})
    iterator.close()


class BrokenOnceLoader(ThreadLoader):
    """Fails on the fourth load."""

    count = 0

    def load(self, plan: BlockPlan, out: Mapping[str, np.ndarray]) -> None:
        self.count += 1
        if self.count == 4:
            raise CorruptDataError("block is damaged")
        super().load(plan, out)


def test_a_module_that_fails_leaves_the_others_in_step(feed_dataset: Path, plans: dict[str, FeedPlan]) -> None:
    streamed = DatasetSource(feed_of(feed_dataset, resident=False), (0, 1))
    broken = open_iterator(streamed, CPU, 30.0, lambda kind, recipe: BrokenOnceLoader(recipe))
    steady = DatasetSource(plans["run"].feed, (0, 1)).open(CPU, 30.0)
    iterator = MultiIterator({"a": steady, "b": broken})  # a is asked first and is one ahead when b fails
    expected = read(MultiSource({"a": DatasetSource(plans["run"].feed, (0, 1)), "b": streamed}), 40)
    failures, got = 0, []
    while len(got) < 40:
        try:
            got.append(take(iterator))
        except CorruptDataError:
            failures += 1
    assert failures == 1
    for each, wanted in zip(got, expected, strict=True):
        assert_equal(each, wanted)
    iterator.close()


def loader_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("dask-rl-loader")}


def test_what_was_opened_is_closed_where_the_next_module_cannot_be(plans: dict[str, FeedPlan]) -> None:
    before = loader_threads()
    changed = replace(plans["walk"], feed=replace(plans["walk"].feed, content_hash="0" * 64))
    loaded = replace(plans["run"], feed=replace(plans["run"].feed, resident=True))
    with pytest.raises(DatasetError, match="restore that dataset") as caught:
        MultiFeedPlan({"run": loaded, "walk": changed}).shares(1)[0].open(CPU, 30.0)
    assert caught.traceback  # whose frames hold what was opened: it is not just collected
    assert loader_threads() == before
    iterator = MultiFeedPlan(plans).shares(1)[0].open(CPU, 30.0)
    iterator.next_batch()
    iterator.close()
    assert loader_threads() == before


def test_feeds_that_are_divided_differently_are_refused(feed_dataset: Path, plans: dict[str, FeedPlan]) -> None:
    other = plan_feed(feed_of(feed_dataset, batch_size=48))
    with pytest.raises(ConfigError, match=r"feeds: got .*'batch_size': 48.*one batch_size and num_shards for all"):
        MultiFeedPlan({"run": plans["run"], "walk": other})
    with pytest.raises(ConfigError, match="feeds: got"):
        MultiFeedPlan({})
