"""Jobs under the real server: written, added, served, waited for, killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest
import yaml

from dask_rl.pipeline.jobs.history import History
from dask_rl.pipeline.jobs.run_record import RunRecord
from dask_rl.storage.episode import Episode
from dask_rl.storage.writer import DatasetWriter

TIMEOUT_SECONDS = 240
ENDED = ("complete", "failed", "timed_out", "interrupted", "skipped", "missed")


def wait_for(condition, what: str, seconds: float = TIMEOUT_SECONDS):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s for {what}")
        time.sleep(0.02)
    return found


def write_small_dataset(path: Path, value: float = 0.0, *, num_episodes: int = 10, shard_rows: int = 64) -> Path:
    """Episodes of 20 steps; of another value files of the same sizes."""
    spaces = {
        "observation_space": gymnasium.spaces.Box(-1e4, 1e4, (3,), np.float32),
        "action_space": gymnasium.spaces.Discrete(5),
    }
    with DatasetWriter(path, **spaces, shard_rows=shard_rows) as writer:
        for number in range(num_episodes):
            last = np.arange(20) == 19
            writer.add_episode(
                Episode(
                    observations=np.full((21, 3), value + number, np.float32),
                    actions=np.arange(20) % 5,
                    rewards=np.ones(20, np.float32),
                    terminations=last,
                    truncations=np.zeros(20, bool),
                )
            )
    return path


def seconds_cron(*delays: float) -> str:
    """A cron expression of six fields that is due so many seconds from now, within a minute."""
    times = [datetime.now(UTC) + timedelta(seconds=delay) for delay in delays]
    return f"{','.join(str(time.second) for time in times)} * * * * *"


class Hostile:
    """Unpickled, it makes a directory."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Jobs:
    """A home, the jobs in it, and its servers; everything that was started is ended by `close`."""

    def __init__(self, directory: Path, dataset: Path, home: Path | None = None) -> None:
        self.directory = directory
        self.dataset = dataset
        self.home = home or directory / "home"
        self.servers: list[subprocess.Popen] = []
        self.started: list[subprocess.Popen] = []
        directory.mkdir(parents=True, exist_ok=True)

    def write(self, name: str = "nightly", *, batch=None, **settings) -> Path:
        job = {
            "dataset": str(self.dataset),
            "algorithm": {"name": "bc", "hidden_sizes": [8]},
            "num_steps": 200,
            "batch_size": 16,
            "checkpoint": {"every_steps": 100},
            "batch": {"retry_wait_seconds": 0.1, **(batch or {})},
            "run": f"runs/{name}",
            **settings,
        }
        file = self.directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump(job))
        return file

    def base(self, name: str = "nightly") -> Path:
        return self.directory / "runs" / name

    def command(self, *words) -> list[str]:
        return [sys.executable, "-P", "-m", "dask_rl", "jobs", *map(str, words), "--home", str(self.home)]

    def call(self, *words, code: int = 0, **options):
        """Run a command of `dask-rl jobs`; return what it printed as JSON, of an error stderr."""
        done = subprocess.run(
            [*self.command(*words), "--json"],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            **options,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout) if done.stdout.strip() else done.stderr

    def start(self, *words, **options) -> subprocess.Popen:
        process = subprocess.Popen(
            self.command(*words),
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,
        )
        self.started.append(process)
        return process

    def serve(self, **options) -> subprocess.Popen:
        """Start a server, and return it once it serves."""
        with (self.directory / "serve.log").open("ab") as log:
            server = subprocess.Popen(
                self.command("serve"),
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **options,
            )
        self.servers.append(server)
        wait_for(lambda: self.server_log().count("serving") >= len(self.servers), "a server")
        return server

    def server_log(self) -> str:
        return (self.directory / "serve.log").read_text()

    def history(self, name: str | None = None) -> list[RunRecord]:
        """What ran, the first first."""
        database = self.home / "jobs.sqlite"
        return History(database).latest(name)[::-1] if database.exists() else []

    def ended(self, count: int, name: str | None = None, status: str = "complete") -> list[RunRecord]:
        """Wait until so many runs have come to this end; return them, the first first."""

        def found():
            runs = [record for record in self.history(name) if record.status == status]
            return runs if len(runs) >= count else None

        try:
            return wait_for(found, f"{count} runs that are {status}")
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}: {self.history(name)}\n{self.server_log()}")

    def at_work(self, name: str | None = None) -> RunRecord:
        """Wait for a run at work, and return it."""
        running = lambda: [r for r in self.history(name) if r.status == "running" and r.run]  # noqa: E731
        return wait_for(running, "a run at work")[0]

    def set_next_time(self, name: str, due: datetime) -> None:
        """Make a job wait for a time, as a clock that was wrong would have left it."""
        with sqlite3.connect(self.home / "jobs.sqlite") as connection:
            connection.execute("UPDATE apscheduler_jobs SET next_run_time = ? WHERE id = ?", (due.timestamp(), name))

    def processes(self) -> list[psutil.Process]:
        """What runs for this home or its runs, zombies too."""
        found = []
        for process in psutil.process_iter():
            try:
                words = " ".join(process.cmdline())
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if str(self.home) in words or str(self.directory) in words:
                found.append(process)
        return found

    def close(self) -> None:
        for server in self.servers:
            if server.poll() is None:
                os.kill(server.pid, signal.SIGCONT)
                server.kill()
            server.wait(TIMEOUT_SECONDS)
        for process in self.started:
            process.kill()
            process.communicate(timeout=TIMEOUT_SECONDS)
        for process in self.processes():
            if process.pid != os.getpid():
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue


def trainer_of(record: RunRecord) -> psutil.Process | None:
    """The process that trains, below the one that runs the job."""
    try:
        children = psutil.Process(record.pid).children()
        return next((child for child in children if "train" in child.cmdline()), None)
    except psutil.NoSuchProcess:
        return None


def zombies_of(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if _is_zombie(child)]


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it was one, and was fetched meanwhile
        return False


class Watch:
    """Notes which process trains for which run; more than one at a time would be a run too many."""

    def __init__(self, jobs: "Jobs") -> None:
        self._jobs = jobs
        self.trained: dict[datetime, set[int]] = {}

    def __call__(self) -> None:
        for record in (record for record in self._jobs.history() if record.status == "running"):
            trainer = trainer_of(record)
            if trainer is not None:
                self.trained.setdefault(record.time, set()).add(trainer.pid)
        at_work = [process for process in self._jobs.processes() if _trains(process)]
        assert len(at_work) <= 1, at_work


def _trains(process: psutil.Process) -> bool:
    try:
        return "train" in process.cmdline()
    except psutil.NoSuchProcess:  # a zombie, or gone
        return False
