"""Listeners to a topic: several on one client, none of which is in another's way."""

import threading

import pytest
from run_commands import wait_for

from dask_rl.pipeline.runs.live.topics import confirm, listen

pytestmark = pytest.mark.service

TOPIC = "dask-rl-tests"


def test_all_listeners_hear_until_they_end_and_one_that_fails_silences_nobody(cluster_client):
    heard = {"a": [], "b": []}

    failed = []

    def fail(message):
        failed.append(message)
        raise RuntimeError("no")

    ends = [listen(cluster_client, TOPIC, each) for each in (fail, heard["a"].append, heard["b"].append)]
    assert confirm(cluster_client, TOPIC, 30)
    cluster_client.log_event(TOPIC, "no mapping")
    cluster_client.log_event(TOPIC, {"word": 1})
    wait_for(lambda: all({"word": 1} in words for words in heard.values()), "the word")
    assert all("no mapping" not in words for words in heard.values())
    ends[1]()
    cluster_client.log_event(TOPIC, {"word": 2})
    wait_for(lambda: {"word": 2} in heard["b"], "the second word")
    assert {"word": 2} not in heard["a"]
    for end in ends:
        end()
        end()
    assert {"word": 2} in failed


def test_what_is_asked_for_after_it_is_confirmed_is_heard(cluster_client):
    for number in range(20):
        heard = threading.Event()
        end = listen(cluster_client, TOPIC, lambda message, heard=heard: heard.set() if "word" in message else None)
        assert confirm(cluster_client, TOPIC, 30)
        cluster_client.log_event(TOPIC, {"word": number})
        assert heard.wait(30)
        end()
