"""What tells a process from a later one of the same pid, whatever happens to the clock in between."""

from pathlib import Path

_STATE, _START = 0, 19
"""Fields of /proc/PID/stat, counted from the one behind the name, see proc_pid_stat(5)."""
_ENDED = (b"Z", b"X")


def boot_id() -> str:
    """Return what names this start of the host: ticks count from it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the host was started; None where it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(b")")[2].split()  # a program's name may hold spaces and parentheses
    return None if fields[_STATE] in _ENDED else int(fields[_START])
