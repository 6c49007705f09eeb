"""Steps of several learners, which must agree on them."""

import numpy as np
import pytest
import torch
from learner_cases import make_batch, make_learner, weights
from learner_peers import run_in_threads

from dask_rl.learners.agreement import agree_on_update
from dask_rl.learners.batch import DEFAULT_MODULE_ID
from dask_rl.learners.collective import SingleProcess
from dask_rl.learners.iterator import IterableSource
from dask_rl.learners.learner import Learner
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.errors import ConfigError

SEQUENTIAL = {"name": "iql", "update_order": "sequential"}


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


# -- plans that the learners agree on ----------------------------------------------------------------------------


class Counting(SingleProcess):
    def __init__(self):
        self.calls = 0

    def all_reduce_(self, tensor):
        self.calls += 1


def pair(modules=("a", "b"), **kwargs):
    return [make_learner({"name": "bc"}, modules=modules, **kwargs) for _ in range(2)]


def run_pair(learners, requests):
    """One request on each of two learners: their results."""

    def work(collective):
        learner = learners[collective.rank]
        learner.join(collective)
        return learner.run(requests[collective.rank])

    return run_in_threads(2, work)


def test_256_rows_on_one_learner_and_64_on_the_other_at_minibatch_32_are_8_steps_each():
    learners = pair((DEFAULT_MODULE_ID,))
    requests = [
        UpdateRequest(
            1, batch={DEFAULT_MODULE_ID: make_batch("continuous", rows)}, num_minibatches=None, minibatch_size=32
        )
        for rows in (256, 64)
    ]
    for result in run_pair(learners, requests):
        assert result["all_modules"]["num_steps"] == 8
        assert result[DEFAULT_MODULE_ID]["num_rows"] == 8 * 32
    assert torch.equal(learners[0].flat.data, learners[1].flat.data)


def test_a_learner_alone_counts_its_own_rows():
    learner = make_learner({"name": "bc"})
    batch = {DEFAULT_MODULE_ID: make_batch("continuous", 100)}
    result = learner.run(UpdateRequest(1, batch=batch, num_minibatches=None, num_epochs=3, minibatch_size=32))
    assert result["all_modules"]["num_steps"] == 10


def test_a_module_with_an_empty_shard_on_one_rank_is_skipped_on_both_and_counted():
    learners = pair()
    before = {module_id: weights(learners[0], module_id) for module_id in "ab"}
    requests = [
        UpdateRequest(1, batch=batch, num_minibatches=None, minibatch_size=5)
        for batch in (
            {"a": make_batch("continuous", 9), "b": make_batch("continuous", 40)},
            {"a": make_batch("continuous", 3), "b": make_batch("continuous", 0)},
        )
    ]
    for result in run_pair(learners, requests):
        assert list(result) == ["a", "all_modules"]
        assert result["all_modules"]["num_steps"] == 2, "of 9 rows: those of b do not count"
        assert result["all_modules"]["num_skipped_module_steps"] == 2
        assert result["all_modules"]["num_skipped_steps"] == 0
    for learner in learners:
        assert same(weights(learner, "b"), before["b"])
        assert not same(weights(learner, "a"), before["a"])


def test_an_empty_shard_of_the_only_module_skips_every_step_on_both_and_counts_them():
    learners = pair((DEFAULT_MODULE_ID,))
    before = weights(learners[0])
    requests = [
        UpdateRequest(1, batch=batch, num_minibatches=None, num_epochs=2)
        for batch in ({DEFAULT_MODULE_ID: make_batch("continuous", 5)}, {})
    ]
    for result in run_pair(learners, requests):
        assert result["all_modules"]["num_skipped_steps"] == result["all_modules"]["num_steps"] == 2
        assert result["all_modules"]["num_skipped_module_steps"] == 2
    for learner in learners:
        assert same(weights(learner), before)
        assert learner.step == 2


def test_agreeing_on_an_update_takes_one_exchange():
    collective = Counting()
    agreed = agree_on_update(
        collective,
        {"b": make_batch("continuous", 7), "c": make_batch("continuous", 0)},
        num_epochs=1,
        minibatch_size=2,
        module_ids=["a", "b", "c"],
        device=torch.device("cpu"),
    )
    assert (agreed.module_ids, agreed.num_left_out, agreed.num_minibatches) == (("b",), 1, 4)
    assert collective.calls == 1


# -- iterators whose batches may differ --------------------------------------------------------------------------


def test_iterators_with_uneven_modules_update_only_those_that_all_have():
    learners = pair()
    rows = lambda n, seed=0: make_batch("continuous", n, seed)  # noqa: E731
    streams = (
        [{"a": rows(3), "b": rows(3)}, {"a": rows(3)}, {}, {"b": rows(0), "a": rows(2)}],
        [{"a": rows(4, 1)}, {"b": rows(4, 1)}, {"a": rows(1)}, {"a": rows(5), "b": rows(2)}],
    )
    requests = [UpdateRequest(1, source=IterableSource(stream, "x"), num_iters=4) for stream in streams]
    before = {module_id: weights(learners[0], module_id) for module_id in "ab"}
    for result in run_pair(learners, requests):
        everything = result["all_modules"]
        assert (everything["num_steps"], everything["step"]) == (4, 4)
        assert everything["num_skipped_steps"] == 2, "the second and the third"
        assert everything["num_skipped_module_steps"] == 1 + 2 + 1 + 1
    assert torch.equal(learners[0].flat.data, learners[1].flat.data)
    assert same(weights(learners[1], "b"), before["b"])
    alone = make_learner({"name": "bc"}, modules=("a", "b"))
    together = {name: torch.cat([rows(3)[name], rows(4, 1)[name]]) for name in rows(3)}
    alone.run(UpdateRequest(1, batch={"a": together}))
    alone.step += 2
    together = {name: torch.cat([rows(2)[name], rows(5)[name]]) for name in rows(3)}
    alone.run(UpdateRequest(2, batch={"a": together}))
    for name, value in weights(alone, "a").items():
        np.testing.assert_allclose(weights(learners[0], "a")[name], value, rtol=1e-10, atol=1e-13)


def test_an_iterator_without_rows_skips_the_step_of_a_learner_alone():
    learner = make_learner({"name": "bc"})
    stream = [{}, {DEFAULT_MODULE_ID: make_batch("continuous", 0)}, {DEFAULT_MODULE_ID: make_batch("continuous", 3)}]
    result = learner.run(UpdateRequest(1, source=IterableSource(stream, "x"), num_iters=3))
    assert (result["all_modules"]["num_steps"], result["all_modules"]["num_skipped_steps"]) == (3, 2)
    assert result["all_modules"]["num_skipped_module_steps"] == 1
    assert learner.iterator_steps == {"x": 3}


# -- should_module_be_updated ------------------------------------------------------------------------------------


def both_modules(seed=0):
    return {"a": make_batch("continuous", 6, seed), "b": make_batch("continuous", 6, seed + 1)}


@pytest.mark.parametrize("should", [None, ("b",), {"b"}, lambda module_id, batches: module_id == "b"])
def test_should_module_be_updated_as_none_a_collection_or_a_function(should):
    learner = make_learner({"name": "bc"}, modules=("a", "b"))
    learner.should_module_be_updated = should
    before = weights(learner, "a")
    for number, request in enumerate(({"batch": both_modules()}, {"source": IterableSource([both_modules()], "x")}), 1):
        result = learner.run(UpdateRequest(number, **request))
        assert list(result) == (["a", "b", "all_modules"] if should is None else ["b", "all_modules"])
        assert result["all_modules"]["num_skipped_steps"] == 0
        assert result["all_modules"]["num_skipped_module_steps"] == 0, "not wanted is not missed"
    assert same(weights(learner, "a"), before) == (should is not None)
    assert bool(learner.optimizers["a", "default"].state_dict()) == (should is None), "not stepped at all"


def test_modules_to_update_of_the_config():
    learner = make_learner({"name": "bc"}, modules=("a", "b"))
    config = learner.config.model_copy(update={"modules_to_update": ("a",)})
    other = Learner(config, learner.module_spec)
    other.build()
    assert list(other.run(UpdateRequest(1, batch=both_modules()))) == ["a", "all_modules"]
    wrong = Learner(config.model_copy(update={"modules_to_update": ("c",)}), learner.module_spec)
    with pytest.raises(ConfigError, match=r"modules_to_update: got unknown modules \['c'\]; allowed: \['a', 'b'\]"):
        wrong.build()


def test_a_function_gets_the_batches_of_each_step_and_decides_with_the_others():
    learners = pair()
    asked = []

    def positive(module_id, batches):
        asked.append((module_id, sorted(batches)))
        return bool(batches[module_id]["rewards"].sum() > 0)

    for learner in learners:
        learner.should_module_be_updated = positive
    signs = {"a": ((1, 1), (1, -1), (-1, -1)), "b": ((-1, -1), (1, 1), (-1, 1))}

    def stream(rank):
        for step in range(3):
            batches = both_modules(step)
            for module_id, batch in batches.items():
                batch["rewards"] = torch.full((6,), float(signs[module_id][step][rank]))
            yield batches

    moved = []

    def work(collective):
        learner = learners[collective.rank]
        learner.join(collective)
        for number, batches in enumerate(stream(collective.rank), 1):
            before = learner.flat.data.clone()
            learner.run(UpdateRequest(number, batch=batches))
            ranges = [learner.flat.ranges([(module_id, "default")])[0] for module_id in "ab"]
            if collective.rank == 0:
                moved.append([not torch.equal(learner.flat.data[i:j], before[i:j]) for i, j in ranges])

    run_in_threads(2, work)
    assert moved == [[True, False], [False, True], [False, False]]
    assert torch.equal(learners[0].flat.data, learners[1].flat.data)
    assert learners[0].step == 3
    assert learners[0].num_skipped_steps == learners[1].num_skipped_steps == 1
    assert all(both == ["a", "b"] for _, both in asked)
