"""Loggers hear what a run says; one that fails costs the run nothing, and is not lost in silence."""

import pytest

from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.run_log import RunLog


class Heard:
    """A logger that fails from some call on."""

    def __init__(self, name, fails_at=""):
        self.name, self.fails_at = name, fails_at
        self.steps, self.is_closed = [], False

    def begin(self, rows):
        self.steps = [row["step"] for row in rows]
        self._fail("begin")

    def log(self, row):
        self._fail("log")
        self.steps.append(row["step"])

    def close(self):
        self.is_closed = True
        self._fail("close")

    def _fail(self, at):
        if at == self.fails_at:
            raise OSError(f"no {at}")


@pytest.fixture
def directory(tmp_path):
    with RunDirectory(tmp_path / "run").locked() as directory:
        yield directory


def test_loggers_hear_the_rows_that_are_in_the_file(directory):
    logger = Heard("a")
    with RunLog(directory, [logger]) as log:
        for step in (10, 20, 30):
            log.append("train", step, {"loss": 1.0})
        log.begin(20)
        log.append("train", 25, {})
        assert not logger.is_closed
    assert logger.steps == [row["step"] for row in directory.rows()] == [10, 20, 25]
    assert logger.is_closed


@pytest.mark.parametrize("at", ["begin", "log", "close"])
def test_one_that_fails_is_left_out_and_the_others_hear_of_it(directory, at):
    bad, good = Heard("bad", at), Heard("good")
    with RunLog(directory, [bad, good]) as log:
        log.append("train", 10, {})
        log.begin(10)
        log.append("train", 20, {})
    events = directory.rows("event")
    assert [(row["name"], row["logger"], row["cause"]) for row in events] == [
        ("logger_failed", "bad", f"OSError: no {at}")
    ]
    assert [row["step"] for row in directory.rows("train")] == [10, 20]
    assert set(good.steps) == {10, 20}
    assert (bad.is_closed, good.is_closed) == (at == "close", True)
