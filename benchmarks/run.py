"""Run all benchmarks, each in a process of its own, and print one summary; exit code 1 if a gate fails."""

import json
import subprocess
import sys
from pathlib import Path

from harness import RESULTS, gate_table, parse_repeats
from rich.console import Console

BENCHMARKS = (
    "update_speed",
    "group_overhead",
    "storage_read",
    "storage_stream",
    "frames",
    "resident_sampling",
    "data_wait",
    "storage_write",
    "planning_cost",
    "dashboard_cost",
)


def main() -> int:
    repeats = parse_repeats()
    gates, broken = [], []
    for name in BENCHMARKS:
        result = RESULTS / f"{name}.json"
        result.unlink(missing_ok=True)
        script = Path(__file__).with_name(f"{name}.py")
        subprocess.run([sys.executable, str(script), "--repeats", str(repeats)], check=False)
        if result.exists():
            gates += [(name, gate) for gate in json.loads(result.read_text())["gates"]]
        else:
            broken.append(name)
    console = Console()
    console.print(gate_table(gates))
    for name in broken:
        console.print(f"[red]{name} did not finish[/]")
    return int(bool(broken) or any(gate["verdict"] == "FAIL" for _, gate in gates))


if __name__ == "__main__":
    sys.exit(main())
