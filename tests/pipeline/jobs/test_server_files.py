"""The real server and its file: rows that are none, and a file that is moved away beneath it."""

import sqlite3

import pytest
from job_cases import TIMEOUT_SECONDS, wait_for

pytestmark = pytest.mark.service


def add_empty_job(jobs, cron: str) -> None:
    """Add a job of which every run fails at once."""
    file = jobs.write("empty")
    jobs.call("add", file, "--cron", cron, "--timezone", "UTC")
    file.unlink()


def test_a_row_that_holds_no_run_stops_no_job(jobs):
    add_empty_job(jobs, "* * * * * *")
    jobs.serve()
    jobs.ended(1, status="failed")
    with sqlite3.connect(jobs.home / "jobs.sqlite", timeout=10) as connection:
        connection.execute("INSERT INTO runs VALUES ('gone', '2026-01-01T00:00:00Z', 'due', '{}')")
    count = len(jobs.history())
    jobs.ended(count + 2, status="failed")
    assert jobs.server_log().count("run 'gone 2026-01-01T00:00:00Z' is left alone") == 1


@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_a_server_whose_file_is_taken_away_ends_and_says_so(jobs, how):
    add_empty_job(jobs, "0 0 1 1 *")
    server = jobs.serve()
    database = jobs.home / "jobs.sqlite"
    database.rename(jobs.home / "before.sqlite")
    if how == "replaced":
        jobs.call("list")
    assert wait_for(lambda: server.poll(), "its end", 20) == 2
    assert "jobs.sqlite: got another file, or none: it was moved away or removed" in jobs.server_log()
    assert "start `dask-rl jobs serve` again" in jobs.server_log()
    server.wait(TIMEOUT_SECONDS)
