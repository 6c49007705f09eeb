"""Run as a script: `kill_orphans.py` kills a process group, named on its stdin, once whoever wrote that is gone.

A program dies with its parent, see `die_with_parent.py`; what it has started would go on in secret.
"""

import contextlib
import os
import signal
import sys

DONE = "done"


def main() -> None:
    """Wait for the end of stdin, which comes with the end of its writer; spare the group where it says so at last."""
    words = sys.stdin.read().split()
    if words and words[-1] != DONE:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(words[-1]), signal.SIGKILL)


if __name__ == "__main__":
    main()
