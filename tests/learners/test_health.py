"""The table of learners' health: every state, its time limit and its transitions."""

import pytest

from dask_rl.learners.config import LearnersConfig
from dask_rl.learners.health import HealthReport, HealthState, HealthTable

SETTINGS = LearnersConfig(
    health_timeout_seconds=10, startup_timeout_seconds=100, collective_timeout_seconds=20, data_timeout_seconds=40
)
FOR_EVER = 10_000_000.0


def table_with(report=None, now=0.0):
    table = HealthTable(SETTINGS)
    table.start(0, 0.0)
    if report is not None:
        table.hear(0, report, now)
    return table


def is_dead_after(seconds, state, *, is_warm, has_broken):
    table = table_with(HealthReport(state, seconds, step=7, is_warm=is_warm), now=seconds)
    return table.review(seconds, has_broken=has_broken)


@pytest.mark.parametrize(
    ("state", "is_warm", "has_broken", "limit"),
    [
        (HealthState.STARTING, False, False, 100),
        (HealthState.STARTING, False, True, 100),
        (HealthState.READY, True, True, None),
        (HealthState.UPDATING, True, False, 100),
        (HealthState.UPDATING, False, True, 100),
        (HealthState.UPDATING, True, True, 20),
        (HealthState.WAITING_FOR_DATA, True, False, 50),
        (HealthState.WAITING_FOR_DATA, True, True, 50),
        (HealthState.IN_COLLECTIVE, True, False, 30),
        (HealthState.IN_COLLECTIVE, False, False, 110),
    ],
)
def test_each_state_has_its_time_limit(state, is_warm, has_broken, limit):
    options = {"is_warm": is_warm, "has_broken": has_broken}
    assert is_dead_after(limit or FOR_EVER, state, **options) == {}
    if limit is not None:
        cause = f"{state} for {limit + 1} s at step 7"
        assert is_dead_after(limit + 1, state, **options) == {0: cause}


def test_a_learner_is_judged_as_of_its_last_report():
    table = table_with(HealthReport(HealthState.UPDATING, 99.0), now=99.0)
    assert table.review(5000.0) == {}, "nobody asked it since"
    assert table.rows[0].state == "updating"


def test_a_silent_learner_is_suspect_and_then_dead():
    table = table_with(HealthReport(HealthState.IN_COLLECTIVE, 1.0, step=3), now=100.0)
    table.ask(0, 100.0)
    assert table.review(105.0) == {}
    assert table.rows[0].state == "in collective"
    assert table.review(105.1) == {}
    assert table.rows[0].state == "suspect"
    assert table.rows[0].cause == "no answer in 5 s"
    table.ask(0, 106.0)  # the older question counts
    assert table.review(110.0) == {}
    assert table.review(110.1) == {0: "no answer in 10 s, last in collective at step 3"}
    assert table.rows[0].state == "dead"


def test_a_suspect_that_answers_is_what_it_says():
    table = table_with(HealthReport(HealthState.READY, 0.0), now=100.0)
    table.ask(0, 100.0)
    table.review(106.0)
    assert table.rows[0].state == "suspect"
    table.hear(0, HealthReport(HealthState.UPDATING, 2.0, step=4, is_warm=True, last_error="x"), 107.0)
    row = table.rows[0]
    assert (row.state, row.since, row.cause, row.asked) == ("updating", 105.0, None, None)
    assert (row.step, row.is_warm, row.last_error) == (4, True, "x")
    assert table.review(500.0) == {}


def test_a_suspect_is_not_judged_by_what_it_said_before():
    table = table_with(HealthReport(HealthState.UPDATING, 30.0, is_warm=True), now=100.0)
    table.ask(0, 100.0)
    table.review(106.0)
    assert table.review(107.0, has_broken=True) == {}
    table.hear(0, HealthReport(HealthState.UPDATING, 37.0, is_warm=True), 107.0)
    assert table.review(107.0, has_broken=True) == {0: "updating for 37 s at step 0"}


def test_one_that_has_never_answered_is_dead_in_time():
    table = table_with()
    table.ask(0, 50.0)
    assert table.review(60.0) == {}
    assert table.review(61.0) == {0: "no answer in 11 s, last starting at step 0"}


def test_the_dead_stay_dead_and_are_told_once():
    table = table_with(HealthReport(HealthState.READY, 0.0), now=1.0)
    table.lose(0, "killed", 2.0)
    table.lose(0, "another cause", 3.0)
    table.hear(0, HealthReport(HealthState.READY, 0.0), 4.0)
    table.ask(0, 4.0)
    assert table.review(1000.0, has_broken=True) == {}
    assert (table.rows[0].state, table.rows[0].since, table.rows[0].cause) == ("dead", 2.0, "killed")
    table.start(0, 1001.0)
    assert table.rows[0].state == "starting"


def test_each_row_is_its_own():
    table = HealthTable(SETTINGS)
    for actor_id in range(3):
        table.start(actor_id, 0.0)
        table.hear(actor_id, HealthReport(HealthState.READY, 0.0), 0.0)
    table.ask(1, 0.0)
    table.hear(2, HealthReport(HealthState.WAITING_FOR_DATA, 51.0), 1.0)
    assert set(table.review(11.0)) == {1, 2}
    assert [row.state for row in table.rows.values()] == ["ready", "dead", "dead"]


def test_silence_counts_only_while_somebody_listens():
    table = table_with(HealthReport(HealthState.READY, 0.0), now=100.0)
    table.ask(0, 100.0)
    table.excuse(50.0)  # the driver was stopped
    assert table.review(159.0) == {}
    assert table.review(160.1) == {0: "no answer in 10 s, last ready at step 0"}
