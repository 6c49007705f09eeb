"""What all benchmarks share: interleaved repeats, medians with their spread, gates, the report on screen and on disk.

A gate compares the median of at least five repeats with what was asked. It fails only beyond the spread: when even the
better quartile misses. Ratios are taken repeat by repeat, between runs that were neighbours in time, so that a slow
minute of the machine touches both sides.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
MIN_REPEATS = 5
_PACKAGES = ("dask-rl", "numpy", "torch", "dask", "distributed", "zarr", "numcodecs", "h5py")
_VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "KMP_BLOCKTIME")


@dataclass(frozen=True)
class Sample:
    """What the repeats of one case gave."""

    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Their median."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Their lower and upper quartile: the spread."""
        low, high = np.quantile(self.values, [0.25, 0.75]).tolist()
        return low, high

    def __truediv__(self, other: "Sample") -> "Sample":
        """Return the ratio, repeat by repeat."""
        return Sample("x", tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def __str__(self) -> str:
        low, high = self.quartiles
        return f"{self.median:.4g} ({low:.4g} .. {high:.4g})"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        low, high = self.quartiles
        span = {"min": min(self.values), "max": max(self.values)}
        return {"unit": self.unit, "median": self.median, "quartiles": [low, high], **span, "values": self.values}


@dataclass(frozen=True)
class Gate:
    """What was asked of a sample."""

    what: str
    sample: Sample
    required: float
    direction: Literal["at least", "at most"] = "at least"

    @property
    def verdict(self) -> str:
        """PASS, PASS (within the spread) or FAIL."""
        low, high = self.sample.quartiles
        if self.direction == "at least":
            holds, may_hold = self.sample.median >= self.required, high >= self.required
        else:
            holds, may_hold = self.sample.median <= self.required, low <= self.required
        return "PASS" if holds else "PASS (within the spread)" if may_hold else "FAIL"

    @property
    def asked(self) -> str:
        """What was asked, in words."""
        return f"{self.direction} {self.required:g} {self.sample.unit}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"what": self.what, "asked": self.asked, "verdict": self.verdict, "measured": self.sample.to_json()}


@dataclass
class Report:
    """The result of one benchmark."""

    name: str
    question: str
    samples: dict[str, Sample] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def finish(self) -> int:
        """Print and save it; return the exit code, 1 if a gate failed."""
        console = Console()
        table = Table("case", "unit", "median (quartiles)", title=self.question, title_justify="left")
        for case, sample in self.samples.items():
            table.add_row(case, sample.unit, str(sample))
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}", highlight=False)
        if self.gates:
            console.print(gate_table([(self.name, gate.to_json()) for gate in self.gates]))
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        console.print(f"  written to {path}\n", highlight=False)
        return int(any(gate.verdict == "FAIL" for gate in self.gates))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "name": self.name,
            "question": self.question,
            "samples": {case: sample.to_json() for case, sample in self.samples.items()},
            "gates": [gate.to_json() for gate in self.gates],
            "notes": self.notes,
            "environment": asdict(environment()),
        }


def gate_table(gates: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Return a table of gates, given as (benchmark, Gate.to_json())."""
    table = Table("benchmark", "gate", "asked", "measured (quartiles)", "verdict")
    for name, gate in gates:
        measured = gate["measured"]
        sample = Sample(measured["unit"], tuple(measured["values"]))
        colour = "red" if gate["verdict"] == "FAIL" else "green"
        table.add_row(name, gate["what"], gate["asked"], str(sample), f"[{colour}]{gate['verdict']}[/]")
    return table


@dataclass(frozen=True)
class Environment:
    """The machine and the versions that a figure belongs to."""

    cpu: str
    num_cores: int
    torch_threads: int
    load_average: tuple[float, ...]
    """Of the last 1, 5 and 15 minutes: figures of a busy machine say little."""
    python: str
    versions: dict[str, str]
    variables: dict[str, str]


def environment() -> Environment:
    """Describe this process's surroundings."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return Environment(
        cpu=_cpu_model(),
        num_cores=len(os.sched_getaffinity(0)),
        torch_threads=torch.get_num_threads(),
        load_average=os.getloadavg(),
        python=platform.python_version(),
        versions=versions,
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
    )


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def interleaved(cases: Mapping[str, Callable[[], float]], unit: str, repeats: int) -> dict[str, Sample]:
    """Run every case `repeats` times, in turns; every other round backwards, so that none is always the first."""
    values: dict[str, list[float]] = {case: [] for case in cases}
    for repeat in range(repeats):
        for case in list(cases) if repeat % 2 == 0 else reversed(cases):
            values[case].append(cases[case]())
    return {case: Sample(unit, tuple(values[case])) for case in cases}


def parse_repeats(default: int = 7) -> int:
    """Return `--repeats` of the command line."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--repeats", type=int, default=default, help=f"repeats of each case, at least {MIN_REPEATS}")
    repeats: int = parser.parse_args().repeats
    if repeats < MIN_REPEATS:
        parser.error(f"--repeats: got {repeats}; allowed: at least {MIN_REPEATS}")
    return repeats
