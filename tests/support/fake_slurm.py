"""sbatch, scancel, srun and scontrol for machines without SLURM: jobs are processes of this machine.

A shim that has written its files can be put first on the PATH. `sbatch` starts what a script says in a session of its
own and answers with a job's number, `scancel` ends it, `srun` runs its command in the foreground once for each task.
"""

import os
import signal
import stat
import subprocess
from pathlib import Path

_SBATCH = r"""#!/bin/sh
# Usage: sbatch FILE
number=1
until mkdir "$SLURM_FAKE/job-$number" 2> /dev/null; do # several may be submitted at once
    number=$((number + 1))
done
cp "$1" "$SLURM_FAKE/$number.sh"
if grep -q -- '--partition=closed\|-p closed' "$1"; then
    echo "sbatch: error: invalid partition specified: closed" >&2
    exit 1
fi
setsid sh -c 'echo $$ > "$SLURM_FAKE/$0.pid"; exec bash "$SLURM_FAKE/$0.sh"' "$number" \
    > "$SLURM_FAKE/$number.log" 2>&1 < /dev/null &
echo "Submitted batch job $number"
"""
_SCANCEL = r"""#!/bin/sh
echo "$1" >> "$SLURM_FAKE/cancelled"
kill -TERM -- "-$(cat "$SLURM_FAKE/$1.pid")"
"""
_SRUN = r"""#!/bin/sh
# Usage: srun [--option=value]… COMMAND…
tasks=1
while [ "${1#--}" != "$1" ]; do
    case $1 in
        --ntasks=*) tasks=${1#--ntasks=} ;;
    esac
    shift
done
echo "$tasks $*" >> "$SLURM_FAKE/steps"
children=
trap 'for child in $children; do kill -TERM "$child" 2> /dev/null; done' TERM
task=0
while [ "$task" -lt "$tasks" ]; do
    SLURM_PROCID=$task "$@" &
    children="$children $!"
    task=$((task + 1))
done
for child in $children; do
    while kill -0 "$child" 2> /dev/null; do
        wait "$child"
    done
done
"""
_SCONTROL = r"""#!/bin/sh
echo "$*" >> "$SLURM_FAKE/scontrol"
"""


class FakeSlurm:
    """The commands, in a folder, and what was done with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands = folder / "bin"
        self.commands.mkdir(parents=True)
        self._again: list[subprocess.Popen[bytes]] = []
        for name, text in (("sbatch", _SBATCH), ("scancel", _SCANCEL), ("srun", _SRUN), ("scontrol", _SCONTROL)):
            file = self.commands / name
            file.write_text(text)
            file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def environment(self) -> dict[str, str]:
        """What a process needs to find them."""
        return {"PATH": f"{self.commands}:{os.environ['PATH']}", "SLURM_FAKE": str(self.folder)}

    def lines(self, name: str) -> list[str]:
        """What was recorded under a name."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def pids(self) -> list[int]:
        """The jobs' processes."""
        return [int(file.read_text()) for file in self.folder.glob("*.pid")]

    def preempt(self, number: int) -> None:
        """Kill a job and start its script again, as SLURM does with one that is preempted and queued again."""
        file = self.folder / f"{number}.pid"
        os.killpg(int(file.read_text()), signal.SIGKILL)
        with open(self.folder / f"{number}.log", "ab") as log:
            command = ["bash", str(self.folder / f"{number}.sh")]
            self._again.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        file.write_text(str(self._again[-1].pid))

    def kill_all(self) -> None:
        """End what a test that failed has left."""
        for pid in self.pids():
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self._again:
            process.wait(timeout=30)
