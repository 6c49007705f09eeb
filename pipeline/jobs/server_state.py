"""Whether a server is at work on a home, and which."""

import json
import socket

import psutil

from .home import JobsHome


def server_pid(home: JobsHome) -> int | None:
    """Return the pid of the home's server on this host, None where there is none. Takes no lock: one may just start."""
    try:
        holder = json.loads(home.server_lock.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(holder, dict) or holder.get("host") != socket.gethostname():
        return None
    pid = holder.get("pid")
    return pid if isinstance(pid, int) and psutil.pid_exists(pid) else None
