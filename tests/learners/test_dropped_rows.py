"""Rows of dropped calls: added up without waiting."""

import itertools
import time

import pytest
from distributed import Client, Event

from dask_rl.learners.dropped_rows import DroppedRows

TIMEOUT = 20


@pytest.fixture(scope="module")
def client():
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with Client(set_as_default=False, **options) as client:
        yield client


def test_data_that_are_late_are_not_waited_for(client):
    rows, go_on = DroppedRows(), Event("go on", client=client)
    late = client.submit(lambda name: 5 if Event(name).wait(TIMEOUT) else 0, "go on")
    rows.add(7)
    rows.add(late)
    began = time.monotonic()
    assert rows.count(TIMEOUT) == (7, 1)
    assert time.monotonic() - began < TIMEOUT / 2
    go_on.set()
    late.result(TIMEOUT)
    assert rows.count(TIMEOUT) == rows.count(TIMEOUT) == (12, 0)


def test_data_that_failed_or_were_cancelled_have_no_rows(client):
    rows = DroppedRows()
    failed, held = client.submit(lambda: 1 / 0), client.submit(lambda name: Event(name).wait(TIMEOUT), "never")
    failed.exception(TIMEOUT)
    held.cancel()
    rows.add(failed)
    rows.add(held)
    assert rows.count(TIMEOUT) == (0, 0)
    Event("never", client=client).set()  # the worker is not kept


def test_iterables_are_gone_through_for_so_long_and_then_later():
    def slowly():
        for _ in range(8):
            time.sleep(0.01)
            yield 1

    rows = DroppedRows()
    rows.add(slowly())
    rows.add(itertools.repeat(0))
    assert rows.count(0) == (0, 2)
    first, num_open = rows.count(0.025)
    assert 1 <= first < 8
    assert num_open == 2
    assert rows.count(0.5) == (8, 1)


def test_an_iterable_that_fails_keeps_nobody_from_the_others():
    def failing():
        yield 3
        raise KeyError("on purpose")

    rows = DroppedRows()
    rows.add(failing())
    rows.add(iter([4]))
    assert rows.count(TIMEOUT) == (7, 0)
