"""What a scheduler's dashboard answers."""

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from distributed import Client

_WAIT_SECONDS = 60.0


def address_of(client: Client) -> str:
    """The address of a scheduler's dashboard, with a slash at its end."""
    return client.dashboard_link.removesuffix("status")


def fetch(address: str) -> tuple[int, str]:
    """Status and text of an answer."""
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def fetch_json(address: str) -> Any:
    """An answer that must be JSON."""
    status, text = fetch(address)
    assert status == 200, text
    return json.loads(text)


def wait_until(condition: Any, what: str, seconds: float = _WAIT_SECONDS) -> Any:
    """Wait until condition() is true, and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:g} s for {what}")
        time.sleep(0.05)
    return value
