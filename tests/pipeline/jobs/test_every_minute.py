"""A job that is due every minute for six minutes, with all that befalls it; the short form is in test_server.py."""

import faulthandler
import sys
from datetime import timedelta

import pytest
from job_cases import TIMEOUT_SECONDS, Watch, trainer_of, wait_for, zombies_of
from run_commands import has_checkpoint_beyond

from dask_rl.pipeline.jobs.times import folder_name, iso, now, parse_time

NUM_MINUTES = 6
LIMIT_SECONDS = 900


@pytest.mark.storm
def test_six_minutes_with_a_killed_run_and_a_killed_server(jobs):
    """Every minute ran once; the killed run ends with the bits of the others; nothing is left."""
    # It takes longer than pytest's own limit, which this replaces.
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True, file=sys.__stderr__)
    job = jobs.write(num_steps=2000)
    first = jobs.call("add", job, "--cron", "* * * * *", "--timezone", "UTC")["next"]
    server = jobs.serve()
    watch = Watch(jobs)

    def ended(count):
        watch()
        return len([record for record in jobs.history() if not record.is_open]) >= count

    def second_trains():
        watch()
        records = jobs.history()
        return len(records) == 2 and records[1].status == "running" and trainer_of(records[1])

    wait_for(lambda: ended(1), "the first run", 180)
    trainer = wait_for(second_trains, "the second run", 180)
    second = jobs.history()[1]
    wait_for(lambda: has_checkpoint_beyond(jobs.base() / second.run, 100), "a checkpoint")
    trainer.kill()
    server.kill()
    server.wait(TIMEOUT_SECONDS)
    server = jobs.serve()
    wait_for(lambda: not zombies_of(server.pid), "a look of the server's, once a second", 10)
    wait_for(lambda: ended(NUM_MINUTES), "six runs", 420)
    wait_for(lambda: not zombies_of(server.pid), "a look of the server's, once a second", 10)
    jobs.call("pause", "nightly")
    history = jobs.history()[:NUM_MINUTES]

    assert history[0].time == parse_time(first)
    assert [record.time for record in history] == [history[0].time + timedelta(minutes=i) for i in range(NUM_MINUTES)]
    assert {record.status for record in history} == {"complete"}
    assert {record.exit_code for record in history} == {0}
    assert len({record.weights_hash for record in history}) == 1
    assert [record.attempts for record in history] == [1, 2, 1, 1, 1, 1]
    assert [len(watch.trained[record.time]) for record in history] == [record.attempts for record in history]
    assert all(record.datasets and record.promoted for record in history)
    starts = [record.started - record.time for record in history]
    assert max(starts) < timedelta(seconds=30), starts
    assert {run.name for run in jobs.base().glob("2*")} >= {folder_name(record.time) for record in history}
    server.terminate()
    assert server.wait(TIMEOUT_SECONDS) == 0
    assert jobs.processes() == []
    print(f"\n{NUM_MINUTES} runs until {iso(now())}; starts after {[f'{s.total_seconds():.1f} s' for s in starts]}")
