"""Leaving a group in the middle of a request, and going on in the next one."""

from dataclasses import replace

import pytest
import torch
from learner_cases import OrderedSource, ShardedSource, make_batch, make_learner, update
from learner_peers import run_in_threads

from dask_rl.learners.batch import DEFAULT_MODULE_ID, split_batch
from dask_rl.learners.collective import SingleProcess
from dask_rl.learners.iterator import IterableSource
from dask_rl.learners.learner import Learner
from dask_rl.learners.request import Position, UpdateRequest
from dask_rl.storage.errors import ConfigError, LearnerLostError

SETTINGS = [
    {"name": "bc"},
    {"name": "iql", "update_order": "simultaneous", "dropout": 0.2},
    {"name": "iql", "update_order": "sequential", "dropout": 0.2},
]
NUM_ITERS = 6


class Breaking(Learner):
    """Breaks at one stage of one step, once."""

    break_at = None
    hooks = 0

    def before_gradient_based_update(self, timesteps, **kwargs):
        self.hooks += 1

    def _break(self, where):
        if self.break_at == (self.step, where):
            self.break_at = None
            raise ZeroDivisionError

    def compute_gradients(self, phases, batches, noise):
        self._break(f"before {next(iter(phases.values())).name}")
        return super().compute_gradients(phases, batches, noise)

    def apply_gradients(self, keys):
        self._break(f"exchanged {keys[0][1]}")
        super().apply_gradients(keys)


def make_pair(settings):
    return [make_learner(settings, num_steps=30, learner_class=Breaking) for _ in range(2)]


def iterator_requests(number, rank):
    source = ShardedSource("continuous", (rank, rank + 2))
    return UpdateRequest(number, source=source, num_iters=NUM_ITERS)


def minibatch_requests(number, rank):
    share = split_batch(make_batch("continuous", 20, number), 2)[rank]
    return UpdateRequest(
        number, batch={DEFAULT_MODULE_ID: share}, num_minibatches=NUM_ITERS, minibatch_size=4, shuffle_seed=number
    )


def run_requests(learners, collective, make_request, numbers, **join):
    learner = learners[collective.rank]
    learner.join(collective, **join)
    try:
        return [learner.run(make_request(number, collective.rank)) for number in numbers]
    except (ZeroDivisionError, LearnerLostError):
        return learner.leave()


def undisturbed(settings, make_request, numbers=(1, 2, 3)):
    learners = make_pair(settings)
    run_in_threads(2, lambda collective: run_requests(learners, collective, make_request, numbers))
    return learners


def the_same(learner, other):
    assert torch.equal(learner.flat.data, other.flat.data)
    for mine, theirs in zip(learner._shared_tensors(), other._shared_tensors(), strict=True):
        assert torch.equal(mine, theirs)
    assert learner.position() == other.position()
    assert learner.lifetime.state_dict() == other.lifetime.state_dict()


@pytest.mark.parametrize(
    ("settings", "stage"),
    [
        *((settings, stage) for settings in SETTINGS for stage in ("first", "last")),
        (SETTINGS[-1], "middle"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("update_order", value["name"]),
)
@pytest.mark.parametrize("make_request", [iterator_requests, minibatch_requests])
@pytest.mark.parametrize(("failing", "replaced"), [(0, True), (1, False)])
def test_a_request_that_fails_in_the_middle_goes_on_bit_by_bit(settings, make_request, failing, stage, replaced):
    expected = undisturbed(settings, make_request)
    learners = make_pair(settings)
    phases = learners[0].algorithms[DEFAULT_MODULE_ID].phases()
    # Broken before the last exchange of a step both stand at its start, broken after it the peer is a step ahead.
    stages = {
        "first": f"before {phases[0].name}",
        "middle": f"before {phases[len(phases) // 2].name}",
        "last": f"exchanged {sorted(phases[-1].optimizers)[0]}",
    }
    learners[failing].break_at = (NUM_ITERS + 2, stages[stage])
    positions = run_in_threads(2, lambda c: run_requests(learners, c, make_request, (1, 2, 3)))
    other = 1 - failing
    assert positions[failing].step == NUM_ITERS + 2
    assert positions[other].step == NUM_ITERS + 2 + (stage == "last")
    assert positions[other].open_request == 2
    assert positions[other].open_first_step == NUM_ITERS
    if replaced:
        learners[failing] = make_pair(settings)[0]
    results = run_in_threads(
        2,
        lambda c: run_requests(learners, c, make_request, (2, 3), source=other, position=positions[other]),
    )
    for learner, undisturbed_one in zip(learners, expected, strict=True):
        the_same(learner, undisturbed_one)
    assert learners[other].hooks == 3, "once a request"
    assert learners[failing].hooks == (2 if replaced else 3)
    assert results[other][0]["all_modules"]["num_steps"] == NUM_ITERS, "the survivor's covers the whole call"
    assert results[failing][1]["all_modules"]["num_steps"] == NUM_ITERS


def test_a_replacement_takes_over_frozen_parameters_and_lifetime_counts():
    def frozen(seed):
        learner = make_learner({"name": "bc"}, seed=seed)
        learner.module[DEFAULT_MODULE_ID].encoder = torch.nn.Linear(2, 2).double().requires_grad_(False)
        return learner

    learners = [frozen(0), frozen(1)]
    update(learners[0], make_batch("continuous", 6))
    encoders = [learner.module[DEFAULT_MODULE_ID].encoder.weight for learner in learners]
    assert not torch.equal(*encoders)
    position = learners[0].position()
    run_in_threads(2, lambda c: learners[c.rank].join(c, source=0, position=position))
    assert torch.equal(*encoders)
    the_same(*learners)
    assert learners[1].lifetime.state_dict() == {DEFAULT_MODULE_ID: {"num_rows": 6, "num_steps": 1}}


def test_a_request_that_was_carried_out_is_not_repeated():
    learner = make_learner({"name": "bc"})
    request = UpdateRequest(1, batch={DEFAULT_MODULE_ID: make_batch("continuous", 6)})
    first = learner.run(request)
    before = learner.flat.data.clone()
    assert learner.run(request) is first
    assert torch.equal(learner.flat.data, before)
    assert learner.step == 1
    for _ in range(8):
        update(learner, make_batch("continuous", 6))
    kept = learner.run(replace(request, number=2))
    assert kept["all_modules"]["num_steps"] == 1
    forgotten = learner.run(request)
    assert (forgotten["all_modules"]["num_steps"], forgotten["all_modules"]["step"]) == (0, 9)
    assert list(forgotten) == ["all_modules"]


def test_as_many_results_are_kept_as_requests_may_be_under_way():
    learner = make_learner({"name": "bc"}, max_requests_in_flight_per_learner=11)
    results = [update(learner, make_batch("continuous", 6)) for _ in range(13)]
    kept = [learner.run(UpdateRequest(number, batch={}))["all_modules"]["num_steps"] for number in range(1, 14)]
    assert kept == [0] + [1] * 12, "eleven, and one that is waited for"
    assert learner.run(UpdateRequest(2, batch={})) is results[1]


def test_a_learner_that_took_over_a_finished_request_has_nothing_to_tell_of_it():
    learner = make_learner({"name": "bc"})
    learner.join(SingleProcess(), position=Position(step=4, weights_seq_no=2))
    result = learner.run(UpdateRequest(2, batch={DEFAULT_MODULE_ID: make_batch("continuous", 6)}))
    assert result["all_modules"]["num_steps"] == 0
    assert result["all_modules"]["step"] == 4
    assert learner.step == 4


def test_a_learner_that_failed_in_the_last_step_of_a_request_tells_of_the_others():
    settings, (failing, other) = SETTINGS[1], (1, 0)
    learners = make_pair(settings)
    learners[failing].break_at = (NUM_ITERS - 1, "exchanged critic")
    left = run_in_threads(2, lambda c: run_requests(learners, c, iterator_requests, (1,)))
    assert left[other][0]["all_modules"]["num_steps"] == NUM_ITERS
    position = learners[other].position()
    assert (position.weights_seq_no, position.open_request) == (1, None)
    results = run_in_threads(
        2, lambda c: run_requests(learners, c, iterator_requests, (1, 2), source=other, position=position)
    )
    assert results[other][0] is left[other][0]
    assert results[failing][0]["all_modules"]["num_steps"] == NUM_ITERS - 1
    for learner, expected in zip(learners, undisturbed(settings, iterator_requests, (1, 2)), strict=True):
        the_same(learner, expected)


def test_a_request_that_failed_by_itself_makes_room_for_the_next():
    learner = make_learner({"name": "bc"}, learner_class=Breaking)
    learner.break_at = (2, "exchanged default")
    with pytest.raises(ZeroDivisionError):
        learner.run(iterator_requests(1, 0))
    assert learner.position() == Position(2, 0, 0, 1, 0, {"sharded": {"step": 2}})
    result = learner.run(iterator_requests(2, 0))
    assert result["all_modules"]["num_steps"] == NUM_ITERS
    assert learner.position() == Position(2 + NUM_ITERS, 2, 0, None, 2, {"sharded": {"step": 2 + NUM_ITERS}})


def test_a_hook_that_failed_is_called_again():
    class Failing(Learner):
        calls = 0

        def before_gradient_based_update(self, timesteps, **kwargs):
            self.calls += 1
            if self.calls == 1:
                raise ZeroDivisionError

    learner = make_learner({"name": "bc"}, learner_class=Failing)
    with pytest.raises(ZeroDivisionError):
        learner.run(iterator_requests(1, 0))
    assert learner.activity.name == "idle"
    learner.run(iterator_requests(1, 0))
    assert (learner.calls, learner.step) == (2, NUM_ITERS)


@pytest.mark.parametrize("other_data", [False, True])
def test_a_replacement_learns_from_the_others_whether_a_stream_goes_on(other_data):
    """The first request after a loss may bring other iterables, of which a replacement does not know that."""
    streams = [[make_batch("continuous", 4, 10 * version + index) for index in range(5)] for version in (1, 2)]

    def request(number, version):
        return UpdateRequest(number, source=IterableSource(streams[version], "iterables", version), num_iters=2)

    def run(learners, collective, number, version, **join):
        learner = learners[collective.rank]
        learner.join(collective, **join)
        learner.run(request(number, version))

    learners, undisturbed = make_pair({"name": "bc"}), make_pair({"name": "bc"})
    for number, version in ((1, 0), (2, int(other_data))):
        run_in_threads(2, lambda c, n=number, v=version: run(undisturbed, c, n, v))
    run_in_threads(2, lambda c: run(learners, c, 1, 0))
    learners[1] = make_pair({"name": "bc"})[0]
    position = learners[0].position()
    run_in_threads(2, lambda c: run(learners, c, 2, int(other_data), position=position))
    for learner, expected in zip(learners, undisturbed, strict=True):
        the_same(learner, expected)
    assert learners[0].iterator_steps == {"iterables": 2 if other_data else 4}


def test_leaving_twice_and_with_restored_iterators():
    learner, restored = make_learner({"name": "bc"}), make_learner({"name": "bc"})
    learner.run(iterator_requests(1, 0))
    restored.set_state(learner.get_state())
    assert restored.leave() == restored.leave() == learner.position()
    replacement = make_learner({"name": "bc"})
    replacement.set_state(learner.get_state(["rl_module", "optimizers", "lifetime"]))
    replacement.join(SingleProcess(), position=restored.position())
    for each in (learner, restored, replacement):
        each.run(iterator_requests(2, 0))
    the_same(restored, learner)
    the_same(replacement, learner)


def ordered_request(number, rank, **kwargs):
    source = OrderedSource("continuous", (rank, rank + 2), **kwargs)
    return UpdateRequest(number, source=source, num_iters=NUM_ITERS)


def test_a_replacement_can_save_what_it_took_over_before_it_opens_an_iterator():
    """The one that saves may have been lost while the group was idle, so that no update opens anything."""
    pair, replacement = make_pair({"name": "bc"}), make_pair({"name": "bc"})[0]
    run_in_threads(2, lambda c: run_requests(pair, c, ordered_request, (1,)))
    state = pair[1].get_state()
    assert state["iterators"] == {"sharded": {"step": NUM_ITERS, "parameters": {"order": 0}}}
    learners = [replacement, pair[1]]
    run_in_threads(2, lambda c: learners[c.rank].join(c, source=1, position=pair[1].position()))
    assert replacement.get_state("iterators")["iterators"] == state["iterators"]
    the_same(*learners)
    third = make_pair({"name": "bc"})  # and one that takes over from the one that has opened nothing
    third[0] = replacement
    run_in_threads(2, lambda c: third[c.rank].join(c, source=0, position=replacement.position()))
    assert third[1].get_state("iterators")["iterators"] == state["iterators"]


def test_a_replacement_takes_over_what_was_restored_and_not_opened():
    saved, survivor, replacement = (make_learner({"name": "bc"}) for _ in range(3))
    saved.run(ordered_request(1, 0))
    survivor.set_state(saved.get_state())
    learners = [replacement, survivor]
    run_in_threads(2, lambda c: learners[c.rank].join(c, source=1, position=survivor.position()))
    assert replacement.get_state("iterators") == saved.get_state("iterators")
    replacement.join(SingleProcess(), position=survivor.position())
    for learner in (saved, replacement):
        learner.run(ordered_request(2, 0))
    the_same(replacement, saved)


def test_a_replacement_checks_that_the_order_is_the_same():
    survivor, replacement = make_learner({"name": "bc"}), make_learner({"name": "bc"})
    survivor.run(ordered_request(1, 0))
    replacement.join(SingleProcess(), position=survivor.position())
    with pytest.raises(ConfigError, match="another order"):
        replacement.run(ordered_request(2, 0, order=1))


def test_the_place_in_data_that_could_not_be_opened_anew_is_kept():
    """With other shards, as in a group that grew."""
    learner = make_learner({"name": "bc"})
    learner.run(ordered_request(1, 0))
    learner.join(SingleProcess(), position=learner.position())
    before = learner.get_state("iterators")
    with pytest.raises(ZeroDivisionError):
        learner.run(ordered_request(2, 1, fails=True))
    assert learner.get_state("iterators") == before
    assert list(learner.position().iterators) == ["sharded"]
    learner.run(ordered_request(2, 1))
    assert learner.iterators["sharded"].step == 2 * NUM_ITERS


def test_a_restored_state_is_another_history():
    learner = make_learner({"name": "bc"})
    state = learner.get_state()
    first = learner.run(iterator_requests(1, 0))
    learner.set_state(state)
    again = learner.run(iterator_requests(1, 0))
    assert again is not first
    assert again["all_modules"]["num_steps"] == NUM_ITERS
    other = make_learner({"name": "bc"}, seed=1)
    other.run(iterator_requests(1, 1))
    learner.set_state(other.get_state())
    assert learner.run(iterator_requests(1, 0))["all_modules"]["num_steps"] == 0, "its own is of the history that was"
