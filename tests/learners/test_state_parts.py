"""A state that does not fit, wherever in it that shows, changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_cases import OrderedSource, make_batch, make_learner

from dask_rl.learners.batch import DEFAULT_MODULE_ID
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.errors import CheckpointError, ConfigError

OPTIMIZER = f"optimizers/{DEFAULT_MODULE_ID}/default"
SOURCE = OrderedSource("continuous", (0, 1))


def trained(seed=0, requests=2, keys=("sharded",)):
    learner = make_learner({"name": "bc"}, seed=seed)
    for number in range(requests):
        source = replace(SOURCE, key=keys[number % len(keys)])
        learner.run(UpdateRequest(number + 1, source=source, num_iters=3))
    return learner


def changed(state, path, value):
    """A copy of a state in which something stands at a path; None: nothing."""
    first, _, rest = path.partition("/")
    copy = dict(state)
    if rest:
        copy[first] = changed(copy[first], rest, value)
    elif value is None:
        del copy[first]
    else:
        copy[first] = value
    return copy


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


WRONG = [
    *(("counters/step", value) for value in ("x", 10**400, -1, 1.5, [], np.array([1, 2]))),
    ("counters/weights_seq_no", 2**62 + 1),
    ("counters/num_skipped_steps", {}),
    ("counters", [1]),
    (f"lifetime/{DEFAULT_MODULE_ID}/num_rows", "x"),
    (f"lifetime/{DEFAULT_MODULE_ID}/num_rows", 10**400),
    (f"lifetime/{DEFAULT_MODULE_ID}/num_steps", None),
    (f"lifetime/{DEFAULT_MODULE_ID}", 3),
    ("iterators/sharded/step", "x"),
    ("iterators/sharded/step", None),
    ("iterators/sharded/parameters", None),
    ("iterators/sharded", "x"),
    ("iterators", {1: {"step": 1}}),
    (f"{OPTIMIZER}/step", "x"),
    (f"{OPTIMIZER}/step", 10**400),
    (f"{OPTIMIZER}/step", None),
    (f"{OPTIMIZER}/step", np.array(["x"])),
    (f"{OPTIMIZER}/step", torch.zeros(3)),
    (f"{OPTIMIZER}/exp_avg.policy.log_std", None),
    (f"{OPTIMIZER}/exp_avg.policy.log_std", torch.zeros(3)),
    (f"{OPTIMIZER}/other", torch.zeros(())),
    (OPTIMIZER, "x"),
    (f"optimizers/{DEFAULT_MODULE_ID}/other", {}),
    (f"optimizers/{DEFAULT_MODULE_ID}", []),
    ("optimizers", 4),
    (f"rl_module/{DEFAULT_MODULE_ID}/policy.log_std", "x"),
    (f"rl_module/{DEFAULT_MODULE_ID}", "x"),
    ("rl_module", [1]),
]


def check_that_it_changes_nothing(state, error):
    learner, other = trained(), trained()
    before = learner.get_state()
    with pytest.raises(error) as raised:
        learner.set_state(state)
    assert len(str(raised.value)) < 1000
    assert same(learner.get_state(), before)
    for each in (learner, other):
        each.run(UpdateRequest(3, source=SOURCE, num_iters=3))
    assert same(learner.get_state(), other.get_state())
    assert learner.position() == other.position()


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda value: str(value)[:40])
def test_a_state_that_is_damaged_somewhere_changes_nothing(path, value):
    check_that_it_changes_nothing(changed(trained(1, 4).get_state(), path, value), CheckpointError)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("iterators/sharded/parameters", {"order": 7}),
        ("iterators/sharded/parameters", 5),
        (f"rl_module/{DEFAULT_MODULE_ID}/policy.log_std", np.zeros(3)),
        (f"rl_module/{DEFAULT_MODULE_ID}/other", np.zeros(3)),
        ("rl_module/other", {}),
    ],
)
def test_a_state_of_other_data_or_networks_changes_nothing(path, value):
    check_that_it_changes_nothing(changed(trained(1, 4).get_state(), path, value), ConfigError)


def test_a_missing_moment_of_every_parameter_is_noticed():
    state = trained(1, 4).get_state()
    for name in list(state["optimizers"][DEFAULT_MODULE_ID]["default"]):
        if name.startswith("exp_avg_sq."):
            state = changed(state, f"{OPTIMIZER}/{name}", None)
    check_that_it_changes_nothing(state, CheckpointError)
    with pytest.raises(
        CheckpointError, match=r"got \['exp_avg', 'step'\]; allowed: \['exp_avg', 'exp_avg_sq', 'step'\]"
    ):
        trained(0, 0).set_state(state)


def test_an_iterator_of_several_that_refuses_leaves_the_others_where_they_were():
    keys = ("first", "second")
    learner, other = trained(keys=keys), trained(keys=keys)
    state = changed(trained(1, 4, keys).get_state(), "iterators/second/parameters", {"order": 7})
    before = learner.get_state()
    with pytest.raises(ConfigError, match="another order"):
        learner.set_state(state)
    assert same(learner.get_state(), before)
    for each in (learner, other):
        each.run(UpdateRequest(3, source=replace(SOURCE, key="first"), num_iters=3))
    assert same(learner.get_state(), other.get_state())


def test_a_damaged_state_of_an_iterator_that_is_not_open_is_told_of_when_it_is():
    learner = make_learner({"name": "bc"})
    learner.set_state({"iterators": {"sharded": {"step": 3}}})
    with pytest.raises(CheckpointError, match="iterators/sharded: got KeyError: 'parameters'"):
        learner.run(UpdateRequest(1, source=SOURCE, num_iters=3))


def test_older_weights_that_are_not_forced_leave_everything_that_goes_with_the_newer():
    learner, older = trained(), trained(1, 1)
    before = learner.get_state()
    learner.set_state(older.get_state(), force=False)
    assert same(learner.get_state(), before)
    learner.set_state(older.get_state())
    assert same(learner.get_state(), older.get_state())


def test_parts_that_a_state_does_not_hold_stay():
    learner, other = trained(), trained(1, 4)
    before = learner.get_state()
    learner.set_state(other.get_state("optimizers"))
    assert same(learner.get_state("optimizers"), other.get_state("optimizers"))
    assert same(learner.get_state(not_components="optimizers"), {k: v for k, v in before.items() if k != "optimizers"})
    learner.set_state({"counters": {"step": np.int64(40)}})
    assert (learner.step, learner.weights_seq_no) == (40, 2)


def test_numbers_of_a_batch_dimension_of_none_are_taken():
    learner = make_learner({"name": "bc"})
    learner.set_state({"lifetime": {DEFAULT_MODULE_ID: {"num_rows": np.array(7), "num_steps": torch.tensor(2)}}})
    assert learner.lifetime.state_dict() == {DEFAULT_MODULE_ID: {"num_rows": 7, "num_steps": 2}}
    learner.run(UpdateRequest(1, batch={DEFAULT_MODULE_ID: make_batch("continuous", 6)}))
    assert learner.lifetime.state_dict() == {DEFAULT_MODULE_ID: {"num_rows": 13, "num_steps": 3}}
