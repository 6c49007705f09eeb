"""Run as a script: `die_with_parent.py PARENT_PID PROGRAM ARGUMENTS…` becomes the program, and dies with its parent.

A process that outlives who waits for it would go on in secret, beside the one that is started in its place.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the program; 127 where there is none."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"error: {command[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
