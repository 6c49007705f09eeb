"""Workers that this process started leave its process group, whoever made the cluster.

Ctrl-C on a terminal, and "interrupt" in a notebook, signal the whole group. Dask's workers die of that; a run under way
is to go on, or needs its learners to save its last step.
"""

import os
import socket
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import WorkerPlugin

ANSWER_SECONDS = 30.0


class OwnSession(WorkerPlugin):
    """Moves workers that are children of one process into sessions of their own, those that come later too.

    They still end with their parent: Dask gives each a pipe from it and ends the process when that breaks.
    """

    def __init__(self, host: str, pid: int) -> None:
        self.name = f"dask-rl-own-session-{host}-{pid}"
        self._host = host
        self._pid = pid

    def setup(self, worker: Any) -> None:
        """Leave the parent's group."""
        if is_child(self._host, self._pid) and os.getpgid(0) != os.getpid():
            os.setsid()


def is_child(host: str, pid: int) -> bool:
    """Tell in a worker whether that process started it."""
    return os.getppid() == pid and socket.gethostname() == host


def keep_interrupts_away(client: Client) -> None:
    """Have the workers that this process started, if any, see no interrupt that is meant for it."""
    host, pid = socket.gethostname(), os.getpid()
    found = client.sync(client._run, is_child, host, pid, on_error="ignore", callback_timeout=ANSWER_SECONDS)
    if any(found.values()):
        client.register_plugin(OwnSession(host, pid))
