"""What the page says, and that nothing in a message becomes HTML."""

from types import SimpleNamespace

import pytest
from bokeh.models.widgets import Div
from run_messages import begin, event, learner, row, status

from dask_rl.pipeline.dashboard.live_runs import LiveRuns
from dask_rl.pipeline.dashboard.page import LearnersPage, LearnersPlot
from dask_rl.pipeline.dashboard.tables import event_log, health_table, overview
from dask_rl.pipeline.dashboard.words import chip, duration, heading, sentence

EVIL = "<script>alert('x')</script>"


def entry_of(*messages, published=None, now=0.0):
    live_runs = LiveRuns()
    for message in messages:
        live_runs.hear(message, now)
    live_runs.see(published or {}, now)
    return live_runs.entries()[0]


def test_the_heading_has_progress_and_position():
    dataset = {"kind": "dataset", "step": 0, "path": "/data/pendulum.zarr", "num_transitions": 4000}
    entry = entry_of(begin(num_steps=2000, rows=[dataset]), row(500), now=10.0)
    said = heading(entry, 80.0)
    assert "step <b>500</b> of 2,000 (25%)" in said
    assert "epoch <b>50.00</b> of pendulum.zarr (4,000 transitions)" in said
    assert "<b>5.0</b> steps/s" in said
    assert "lost" in said  # silent for 70 s
    assert "width:25.0%" in said
    assert "/runs/r1 — process 7 on here" in said


def test_a_group_that_is_driven_by_hand_has_a_heading_too():
    entry = entry_of(published={"tcp://a": [learner(0, "g9", name="by hand")]})
    assert "by hand" in heading(entry, 0.0)
    assert "1 learner, driven by hand" in heading(entry, 0.0)


def test_the_table_has_state_rank_generation_step_and_errors_of_the_living_and_the_lost():
    live_runs = LiveRuns()
    seen = {"tcp://a": [learner(0, last_error="KeyError: 'x'")], "tcp://b": [learner(1, generation=3, step=1234)]}
    live_runs.see(seen, 0.0)
    live_runs.lose_worker("tcp://b", 5.0)
    group = live_runs.groups["g1"]
    said = health_table(group, 65.0)
    assert said.index(">updating<") < said.index(">lost<")
    for part in ("KeyError: &#x27;x&#x27;", "1,234", ">3<", "1 min 00 s ago", "its worker left", "tcp://b"):
        assert part in said
    log = event_log(None, group, 65.0, 1e9)
    assert "learner 1 was lost: its worker left" in log
    assert "01:45:40" in log  # 1e9 is 01:46:40
    live_runs.see({}, 66.0)
    assert "have been let go" in health_table(group, 66.0)


def test_what_the_run_says_of_a_loss_takes_the_place_of_what_the_scheduler_saw():
    live_runs = LiveRuns()
    live_runs.hear(begin(), 0.0)
    live_runs.see({"tcp://a": [learner(0)]}, 0.0)
    live_runs.lose_worker("tcp://a", 1.0)
    live_runs.hear(event("learner_lost", learner=0, address="tcp://a", cause="killed"), 2.0)
    entry = live_runs.entries()[0]
    log = event_log(entry.run, entry.group, 3.0, 1e9)
    assert log.count("was lost") == 1
    assert "learner 0 was lost: killed" in log


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"name": "learner_lost", "learner": 1, "cause": "killed"}, "learner 1 was lost: killed"),
        ({"name": "learner_lost", "learner": 1}, "learner 1 was lost: for no known cause"),
        ({"name": "rejoined", "num_learners": 2, "generation": 3, "seconds": 4.25}, "2 learners go on after 4.2 s"),
        ({"name": "restarted", "num_learners": 2, "seconds": "x"}, "2 new ones after 0.0 s"),
        ({"name": "resumed", "step": 3, "kind": "event"}, "goes on from its last checkpoint"),
        ({"name": "other", "step": 3, "kind": "event", "why": "so"}, "other why=so"),
    ],
)
def test_events_are_sentences(row, said):
    assert said in sentence(row)


def test_without_anything_each_part_says_what_will_appear():
    assert "appear here" in health_table(None, 0.0)
    assert "Nothing so far" in event_log(None, None, 0.0, 0.0)


def test_nothing_in_a_message_becomes_html():
    evil_facts = dict.fromkeys(("name", "path", "host", "group_id"), EVIL)
    dataset = {"kind": "dataset", "step": 0, "modules": {EVIL: {"path": EVIL}}}
    live_runs = LiveRuns()
    live_runs.hear(begin(**evil_facts, rows=[dataset]), 0.0)
    live_runs.hear(row(1, **{f"{EVIL}/epoch": 1.0, f"{EVIL}/total_loss": 1.0}), 0.0)
    live_runs.hear(status("failed", reason=EVIL), 0.0)
    evil = learner(0, EVIL, name=EVIL, state=EVIL, last_error=EVIL)
    live_runs.see({EVIL: [evil], "tcp://b": [evil | {"pid": 3}]}, 0.0)
    live_runs.lose_worker("tcp://b", 0.0)
    live_runs.hear(event("learner_lost", learner=EVIL, address=EVIL, cause=EVIL), 0.0)
    live_runs.hear(event(EVIL, why=EVIL), 0.0)
    entry = live_runs.entries()[0]
    shown = [
        heading(entry, 0.0),
        health_table(entry.group, 0.0),
        event_log(entry.run, entry.group, 0.0, 0.0),
        overview(live_runs.entries(), 0.0),
        chip(EVIL),
    ]
    for html in shown:
        assert "&lt;script&gt;" in html
        assert "<script" not in html


def test_durations():
    assert [duration(x) for x in (-1, 0.9, 59.9, 60, 3599, 3600, 90_061)] == [
        "0 s",
        "0 s",
        "59 s",
        "1 min 00 s",
        "59 min 59 s",
        "1 h 00 min",
        "25 h 01 min",
    ]


def test_nothing_that_is_html_is_taken_for_tex_and_no_run_can_pass_for_the_newest():
    scheduler = SimpleNamespace(plugins={"dask-rl": SimpleNamespace(live_runs=LiveRuns())})
    page, plot = LearnersPage(scheduler), LearnersPlot(scheduler)
    parts = [part for root in (page.root, plot.root) for part in root.select({"type": Div})]
    assert len(parts) >= 8
    assert all(part.disable_math for part in parts)
    live_runs = scheduler.plugins["dask-rl"].live_runs
    for number, run_id in enumerate(("newest", "", "r2")):
        live_runs.hear(begin(run_id, name=f"run {run_id}"), float(number))
    page.update()
    assert "run r2" in page.root.select_one({"name": "heading"}).text
