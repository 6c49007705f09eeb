"""LiveRuns: messages and metrics in, what there is to show out. Whatever a stranger sends changes nothing."""

import json
import math
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_messages import begin, event, learner, row, status, train_row

from dask_rl.pipeline.dashboard.checks import MAX_LETTERS, integer, number, plain, text, texts
from dask_rl.pipeline.dashboard.group_record import MAX_LEARNERS, MAX_LOST
from dask_rl.pipeline.dashboard.live_runs import KEPT_GROUPS, MAX_GROUPS, MAX_RUNS, LiveRuns
from dask_rl.pipeline.dashboard.run_record import MAX_EVENT_ROWS, MAX_TRAIN_ROWS
from dask_rl.pipeline.dashboard.series import evaluations, losses, rates, shares
from dask_rl.pipeline.dashboard.tables import event_log, health_table, overview
from dask_rl.pipeline.dashboard.thinned import Thinned
from dask_rl.pipeline.dashboard.words import heading


def hearing(*messages, now=0.0):
    live_runs = LiveRuns()
    for message in messages:
        live_runs.hear(message, now)
    return live_runs


def snapshot_of(live_runs, now=0.0):
    return json.loads(json.dumps(live_runs.snapshot(now, 1e9), allow_nan=False))


def test_a_run_is_what_its_messages_say():
    dataset = {"kind": "dataset", "step": 0, "path": "a.zarr", "num_transitions": 40}
    live_runs = hearing(begin(rows=[dataset, train_row(10)]), row(20), row(30, total_loss=0.25), now=5.0)
    live_runs.hear(status("evaluating", step=30), 6.0)
    [run] = snapshot_of(live_runs, now=8.0)["runs"]
    assert (run["run_id"], run["name"], run["path"], run["host"], run["pid"]) == ("r1", "a run", "/runs/r1", "here", 7)
    assert (run["status"], run["step"], run["num_steps"], run["num_rows"]) == ("evaluating", 30, 100, 4)
    assert run["last_train"] == train_row(30, total_loss=0.25)
    assert run["epochs"] == {"": 3.0}
    assert run["datasets"][""]["num_transitions"] == 40
    assert (run["seconds_since_begin"], run["seconds_since_message"]) == (3.0, 2.0)
    assert live_runs.rows("r1") == [dataset, train_row(10), train_row(20), train_row(30, total_loss=0.25)]


def test_rows_of_all_kinds_come_back_in_their_order():
    evaluation = {"kind": "evaluation", "step": 10, "return_mean": 3.0}
    live_runs = hearing(begin(), row(10), {"kind": "row", "run_id": "r1", "row": evaluation}, event("resumed"), row(20))
    assert [each["kind"] for each in live_runs.rows("r1")] == ["train", "evaluation", "event", "train"]
    assert snapshot_of(live_runs)["runs"][0]["last_evaluation"] == evaluation


def test_begin_replaces_what_was_said_beyond_the_checkpoint():
    live_runs = hearing(begin(), row(10), row(20), row(30), begin(rows=[train_row(10)]))
    assert live_runs.rows("r1") == [train_row(10)]
    assert live_runs.runs["r1"].step == 10


def test_a_run_whose_driver_is_silent_is_lost_and_one_that_ended_is_not():
    live_runs = hearing(begin(), begin("r2"), status("complete", "r2"))
    run, ended = live_runs.runs["r1"], live_runs.runs["r2"]
    assert (run.status_at(20.0), run.status_at(20.1), ended.status_at(1000.0)) == ("running", "lost", "complete")
    live_runs.hear({"kind": "alive", "run_id": "r1", "step": 44}, 19.0)
    assert (run.status_at(39.0), run.status_at(39.1), run.step) == ("running", "lost", 44)


def test_another_start_of_a_run_takes_the_place_of_the_one_that_ended():
    live_runs = hearing(begin("r1", path="/x"), status("interrupted", "r1"), begin("r2", path="/x"))
    assert list(live_runs.runs) == ["r2"]
    live_runs.hear(begin("r3", path="/x"), 1.0)  # while the other one lives
    assert list(live_runs.runs) == ["r2", "r3"]
    live_runs.hear(begin("r4", path="/x", host="there"), 1.0)
    assert list(live_runs.runs) == ["r2", "r3", "r4"]


def test_the_newest_runs_are_kept_and_those_that_go_on_before_those_that_ended():
    live_runs = hearing(begin("alive"), begin("ended"), status("complete", "ended"))
    for number_ in range(MAX_RUNS - 1):
        live_runs.hear(begin(f"n{number_}"), 1.0)
    assert "alive" in live_runs.runs
    assert "ended" not in live_runs.runs
    assert len(live_runs.runs) == MAX_RUNS
    for number_ in range(100):
        live_runs.hear(begin(f"m{number_}"), 1.0)
    assert len(live_runs.runs) == MAX_RUNS
    assert "m99" in live_runs.runs


def test_a_long_run_is_thinned_evenly_and_keeps_its_newest_row():
    live_runs = hearing(begin(num_steps=10**6))
    for step in range(1, 12_346):
        live_runs.hear(row(step), 0.0)
    for number_ in range(2 * MAX_EVENT_ROWS):
        live_runs.hear(event("resumed", step=number_), 0.0)
    run = live_runs.runs["r1"]
    steps = [each["step"] for each in run.train_rows]
    assert len(steps) <= MAX_TRAIN_ROWS
    assert (steps[0], steps[-1]) == (1, 12_345)
    assert {after - before for before, after in pairwise(steps[:-1])} == {4}
    assert [each["step"] for each in run.event_rows] == list(range(MAX_EVENT_ROWS, 2 * MAX_EVENT_ROWS))


@given(st.integers(0, 400), st.integers(3, 20))
def test_thinning_keeps_first_and_newest_in_order(count, limit):
    thinned = Thinned(limit)
    for item in range(count):
        thinned.add(item)
    kept = list(thinned)
    assert kept == sorted(set(kept))
    assert len(kept) <= limit + 1
    assert thinned.latest() == (count - 1 if count else None)
    if count:
        assert kept[0] == 0
        gaps = {after - before for before, after in pairwise(kept[:-1])}
        assert len(gaps) <= 1


# -- learners ----------------------------------------------------------------------------------------------------------


def test_learners_are_those_that_their_workers_tell_of():
    live_runs = hearing(begin())
    live_runs.see({"tcp://a": [learner(1)], "tcp://b": [learner(0)], "tcp://c": None}, 1.0)
    [group] = snapshot_of(live_runs, 1.0)["groups"]
    assert (group["group_id"], group["name"], group["run_id"]) == ("g1", "a run", "r1")
    assert [(each["rank"], each["worker"], each["steps_per_second"]) for each in group["learners"]] == [
        (0, "tcp://b", 20.0),
        (1, "tcp://a", 20.0),
    ]
    live_runs.see({"tcp://a": [], "tcp://b": [learner(0)]}, 2.0)
    [group] = snapshot_of(live_runs, 2.0)["groups"]
    assert [each["rank"] for each in group["learners"]] == [0]
    assert group["lost"] == []  # it was let go of, and its worker is there


def test_a_learner_whose_worker_left_is_lost_and_the_run_says_why_later():
    live_runs = hearing(begin())
    live_runs.see({"tcp://a": [learner(0)], "tcp://b": [learner(1)]}, 1.0)
    live_runs.lose_worker("tcp://b", 3.0)
    live_runs.see({"tcp://a": [learner(0)]}, 4.0)
    [group] = snapshot_of(live_runs, 5.0)["groups"]
    [lost] = group["lost"]
    assert (lost["rank"], lost["state"], lost["cause"], lost["step"]) == (1, "lost", "its worker left", 10)
    assert lost["seconds_in_state"] == 2.0
    live_runs.hear(event("learner_lost", learner=1, address="tcp://b", cause="killed"), 6.0)
    [group] = snapshot_of(live_runs, 6.0)["groups"]
    assert ([each["cause"] for each in group["lost"]], group["num_lost"]) == (["killed"], 1)


def test_a_loss_that_the_scheduler_has_not_seen_is_known_from_the_run():
    live_runs = hearing(begin())
    live_runs.see({"tcp://a": [learner(0)], "tcp://b": [learner(1)]}, 1.0)
    live_runs.hear(event("learner_lost", learner=1, address="tcp://b", cause="hung"), 2.0)
    live_runs.hear(event("learner_lost", learner=0, address="tcp://z", cause="gone"), 2.0)
    live_runs.lose_worker("tcp://b", 3.0)
    [group] = snapshot_of(live_runs, 3.0)["groups"]
    assert [(each["rank"], each["cause"]) for each in group["lost"]] == [(0, "gone"), (1, "hung")]
    assert group["num_lost"] == 2


def test_shares_are_those_of_the_last_minute():
    live_runs, spent = LiveRuns(), {}
    for second in range(0, 201, 2):
        late = max(0, second - 140)  # from then on it waits for data
        spent = {"data_wait_seconds": 0.5 * late, "compute_seconds": 0.5 * (second - late), "collective_seconds": 0.25}
        live_runs.see({"tcp://a": [learner(0, **spent)]}, float(second))
    shares = snapshot_of(live_runs, 200.0)["groups"][0]["learners"][0]["shares"]
    assert shares == {"data_wait_seconds": 0.5, "compute_seconds": 0.0, "collective_seconds": 0.0}
    for second, seconds in ((201.0, 1.0), (205.0, 3.0)):  # another learner in that process, whose sums begin anew
        live_runs.see({"tcp://a": [learner(0, compute_seconds=seconds)]}, second)
    shares = snapshot_of(live_runs, 205.0)["groups"][0]["learners"][0]["shares"]
    assert shares == {"data_wait_seconds": 0.0, "compute_seconds": 0.5, "collective_seconds": 0.0}


def test_groups_and_learners_are_bounded():
    live_runs = LiveRuns()
    everything = {f"tcp://{i}": [learner(0, f"g{i}"), learner(i, "big", pid=i)] for i in range(2 * MAX_LEARNERS)}
    live_runs.see(everything, 1.0)
    assert len(live_runs.groups) == MAX_GROUPS
    assert len(live_runs.groups["big"].learners) == MAX_LEARNERS
    for i in range(2 * MAX_LOST):
        live_runs.lose_worker(f"tcp://{i}", 2.0)
    assert len(live_runs.groups["big"].lost) == MAX_LOST
    assert live_runs.groups["big"].num_lost == 2 * MAX_LOST
    live_runs.see({}, 3.0)
    assert len(live_runs.groups) == KEPT_GROUPS


def test_several_runs_and_groups_are_told_apart():
    live_runs = hearing(begin("r1"), begin("r2", group_id="g2", name="other"), row(10), row(20, "r2"))
    live_runs.see({"tcp://a": [learner(0, "g1")], "tcp://b": [learner(0, "g2")], "tcp://c": [learner(0, "hand")]}, 1.0)
    entries = live_runs.entries()
    found = {entry.key: (entry.run and entry.run.step, list(entry.group.learners)) for entry in entries}
    assert found == {
        "r1": (10, [("tcp://a", 100)]),
        "r2": (20, [("tcp://b", 100)]),
        "hand": (None, [("tcp://c", 100)]),
    }
    assert entries[0].key == "hand"  # the newest first


# -- strangers ---------------------------------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(object()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)
KEYS = st.sampled_from(sorted({*begin(), *status("x"), *learner(0), *train_row(1), "row", "cause", "address"}))
KINDS = st.sampled_from(["begin", "row", "status", "alive", "answer", "other"])


def odd_message(kind, facts):
    return {"kind": kind, "run_id": "r1", **facts}


@given(st.lists(st.builds(odd_message, KINDS, st.dictionaries(KEYS, ANYTHING)) | ANYTHING, max_size=5), ANYTHING)
def test_whatever_is_said_can_be_shown(messages, published):
    live_runs = hearing(begin(), row(1), event("learner_lost", learner=0, address="tcp://a"))
    for message in messages:
        live_runs.hear(message, 1.0)
    live_runs.see({"tcp://a": published, "tcp://b": [published, learner(0) | {"rank": published}]}, 1.0)
    snapshot = snapshot_of(live_runs, 2.0)
    assert len(snapshot["runs"]) <= 2
    for run_id in live_runs.runs:
        json.dumps(live_runs.rows(run_id), allow_nan=False)
    for entry in live_runs.entries():
        assert entry.name
        assert heading(entry, 2.0)
        assert health_table(entry.group, 2.0)
        assert event_log(entry.run, entry.group, 2.0, 1e9)
        for columns in (losses(entry.run), rates(entry.run, entry.group, 2.0), shares(entry.run, entry.group)):
            assert len({len(values) for values in columns.values()}) == 1
        assert len({len(values) for values in evaluations(entry.run).values()}) == 1
    assert overview(live_runs.entries(), 2.0)


@pytest.mark.parametrize("message", [None, 7, "begin", [], {}, {"kind": "begin"}, {"kind": "begin", "run_id": 3}])
def test_what_is_no_message_changes_nothing(message):
    live_runs = hearing(message)
    assert live_runs.runs == {}
    assert live_runs.num_refused == 1


@pytest.mark.parametrize("message", [row(1, "other"), status("running", "other"), {"kind": "alive", "run_id": "other"}])
def test_runs_that_never_began_are_unknown(message):
    assert hearing(message).runs == {}


@pytest.mark.parametrize("value", [{}, {"kind": "train"}, {"kind": 3, "step": 1}, {"kind": "train", "step": "1"}, None])
def test_what_is_no_row_is_left_out(value):
    live_runs = hearing(begin(), {"kind": "row", "run_id": "r1", "row": value})
    assert live_runs.rows("r1") == []
    assert live_runs.num_refused == 1


def test_a_status_that_is_not_known_does_not_count():
    live_runs = hearing(begin(), status("<b>on fire</b>"))
    assert live_runs.runs["r1"].status == "running"


def test_values_are_bounded():
    deep: object = 1
    for _ in range(100):
        deep = {"x": deep}
    assert plain(deep) == {"x": {"x": {"x": {"x": None}}}}
    wide = plain({"a": list(range(10_000)), "b": "y" * 10**6, "c": {str(i): i for i in range(10_000)}})
    assert (len(wide["a"]), len(wide["b"]), len(wide["c"])) == (200, MAX_LETTERS, 500)
    assert plain({"big": 10**30, "nan": math.nan, "bytes": b"x", 3: 4}) == {"big": None, "nan": None, "bytes": None}
    assert plain(type("Odd", (Mapping,), {"__getitem__": 0, "__iter__": 0, "__len__": 0})) is None
    assert (number(True), number(10**400), number("3"), number(3)) == (None, None, None, 3.0)
    assert (integer(True, 9), integer(2**63, 9), integer(1.5, 9), integer(-4)) == (9, 9, 9, -4)
    assert (text("a\n b"), text(3), texts(["a", 1, "b"]), texts("ab")) == ("a b", "", ["a", "b"], [])


@pytest.mark.parametrize("leaves_first", [True, False])
def test_workers_that_leave_at_the_end_of_a_run_are_no_losses(leaves_first):
    live_runs = hearing(begin())
    live_runs.see({"tcp://a": [learner(0)], "tcp://b": [learner(1)]}, 1.0)
    live_runs.hear(event("learner_lost", learner=1, address="tcp://z", cause="killed"), 2.0)
    steps = [lambda: live_runs.lose_worker("tcp://a", 3.0), lambda: live_runs.hear(status("complete"), 3.0)]
    for step in steps if leaves_first else reversed(steps):
        step()
    live_runs.lose_worker("tcp://b", 4.0)
    [group] = snapshot_of(live_runs, 5.0)["groups"]
    assert ([each["cause"] for each in group["lost"]], group["num_lost"], group["learners"]) == (["killed"], 1, [])


@pytest.mark.parametrize("path", ["/runs/my  live run", "/runs/" + "long" * 500])
def test_a_path_stays_as_it_is(path):
    live_runs = hearing(begin(path=path))
    [run] = snapshot_of(live_runs, 0.0)["runs"]
    assert run["path"] == path
