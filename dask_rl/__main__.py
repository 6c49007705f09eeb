"""The `dask-rl` command, also as `python -m dask_rl`: loads it, and says so where a signal ends that."""

import importlib
import json
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

_EXIT_INTERRUPTED = 3
_MESSAGE = "interrupted; the same command again goes on."


def main() -> None:
    """Run the command line and exit. Its modules take a second to load, in which Ctrl-C and SIGTERM come too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cli = importlib.import_module("dask_rl.pipeline.views.cli")
        signal.signal(signal.SIGTERM, before)
        cli.main()
    except KeyboardInterrupt:
        sys.stderr.write(_interrupted(sys.argv[1:]) + "\n")
        sys.exit(_EXIT_INTERRUPTED)


def _interrupted(arguments: Sequence[str]) -> str:
    if "--log-format=json" not in arguments and "--log-format\0json" not in "\0".join(arguments):
        return f"error: {_MESSAGE}"
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    fields = {"message": _MESSAGE, "exit_code": _EXIT_INTERRUPTED}
    return json.dumps({"time": time, "level": "error", "event": "error", "fields": fields})


if __name__ == "__main__":
    main()
