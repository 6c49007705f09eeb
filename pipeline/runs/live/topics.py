"""Several listeners to one topic of one client, where Dask knows only the last."""

import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from distributed import Client
from distributed.client import ClosedClientError

_ECHO_SECONDS = 0.02
_logger = logging.getLogger(__name__)

Listener = Callable[[dict[str, Any]], None]
"""Takes a message; called by the client's event loop, so it must not wait."""

_lock = threading.Lock()
_listeners: weakref.WeakKeyDictionary[Client, dict[str, list[Listener]]] = weakref.WeakKeyDictionary()


def listen(client: Client, topic: str, listener: Listener) -> Callable[[], None]:
    """Have `listener` told every message of a topic from now on; return what ends that."""
    with _lock:
        topics = _listeners.setdefault(client, {})
        of_topic = topics.setdefault(topic, [])
        of_topic.append(listener)
        if len(of_topic) == 1:
            client.subscribe_topic(topic, _Fan(of_topic))

    def end() -> None:
        with _lock:
            if listener in of_topic:
                of_topic.remove(listener)
            if not of_topic and topics.get(topic) is of_topic:
                del topics[topic]
                with suppress(ClosedClientError):
                    client.unsubscribe_topic(topic)

    return end


def confirm(client: Client, topic: str, seconds: float) -> bool:
    """Wait until messages of a topic do arrive; return whether they did in time. Not for the client's event loop.

    A subscription travels by another connection than requests do, so that it may come after what they bring about.
    """
    heard, word, deadline = threading.Event(), secrets.token_hex(8), time.monotonic() + seconds
    end = listen(client, topic, lambda message: heard.set() if message.get("echo") == word else None)
    try:
        while not heard.wait(_ECHO_SECONDS) and time.monotonic() < deadline:
            message = {"kind": "echo", "echo": word}
            client.sync(client.scheduler.log_event, topic=topic, msg=message, callback_timeout=seconds)
    finally:
        end()
    return heard.is_set()


class _Fan:
    """Tells each listener the mappings among a topic's events: anybody on the scheduler may send anything."""

    def __init__(self, listeners: list[Listener]) -> None:
        self._listeners = listeners

    def __call__(self, event: Any) -> None:
        _, message = event
        if not isinstance(message, dict):
            return
        for listener in list(self._listeners):
            try:
                listener(message)
            except Exception:  # one must not silence the others
                _logger.exception("a listener to a topic failed")
