"""`dask-rl jobs …`: training again and again, here or under somebody else's scheduler."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dask_rl.pipeline.runs.logs import current_records
from dask_rl.storage.errors import ConfigError, RunStateError

from .cli_command import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, Output, command, load, table
from .cli_render import add_render

jobs = typer.Typer(help="Train again and again: schedule jobs, serve them, see what ran.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of a job.", show_default=False)]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job.", show_default=False)]
Home = Annotated[
    Path | None,
    typer.Option("--home", help="Where schedule and history are; default: $DASK_RL_HOME, else ~/.dask-rl."),
]
Time = Annotated[
    str | None, typer.Option("--time", help="When the run was due, as the history shows it; default: the last.")
]
_TABLE_COLUMNS = ("job", "time", "status", "exit_code", "attempts", "dataset", "return", "promoted", "message")
_MAX_MESSAGE = 80
_HASH_LETTERS = 8


@command(jobs, "add")
def add(
    job: JobFile,
    cron: Annotated[
        str, typer.Option(help="Five fields as in crontab(5), or six with seconds first.", show_default=False)
    ],
    timezone: Annotated[
        str | None, typer.Option(help="IANA name of the zone that cron is meant in; default: this machine's.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Default: the file's name without its ending.")] = None,
    misfire_grace_seconds: Annotated[
        int | None, typer.Option(min=1, help="How late a run may begin; default: however late.")
    ] = None,
    home: Home = None,
) -> Output:
    """Add a job to the schedule; again, with the same file: change when it is due. One that is paused stays so."""
    with load("pipeline.jobs.extra").needs_extra():
        schedule, trigger = load("pipeline.jobs.schedule"), load("pipeline.jobs.job_trigger")
    names, entries, times = (load(f"pipeline.jobs.{module}") for module in ("names", "job_entry", "times"))
    load("pipeline.runs.job").load_job(job, run_imports=True)
    load("pipeline.jobs.batch_job").load_batch_job(job)
    entry = entries.JobEntry(
        name=names.default_name(job) if name is None else names.check_job_name(name),
        cron=cron,
        timezone=trigger.local_timezone() if timezone is None else timezone,
        job_file=str(job.absolute()),
        directory=os.getcwd(),
        misfire_grace_seconds=misfire_grace_seconds,
        added=times.now(),
    )
    opened = _home(home)
    with schedule.open_schedule(opened) as jobs_:
        due = jobs_.add(entry)
    values = {"name": entry.name, "next": None if due is None else times.iso(due), "paused": due is None}
    values |= {"cron": cron, "timezone": entry.timezone}
    values |= {"job_file": entry.job_file, "directory": entry.directory, "home": str(opened.path)}
    pid = load("pipeline.jobs.server_state").server_pid(opened)
    values["server_pid"] = pid
    hint = "" if pid is not None else "\nno server is running: start `dask-rl jobs serve`"
    when = f"is due at {due.isoformat()}" if due else f"stays paused: `dask-rl jobs resume {entry.name}` ends that"
    return Output(values, f"{entry.name} {when}{hint}")


@command(jobs, "list")
def list_(home: Home = None) -> Output:
    """List the jobs: when each is due, and how its last run ended."""
    with load("pipeline.jobs.extra").needs_extra():
        schedule = load("pipeline.jobs.schedule")
    opened = _home(home)
    history = load("pipeline.jobs.history").History(opened.database)
    with schedule.open_schedule(opened) as jobs_:
        found, damaged = jobs_.jobs(), jobs_.damaged()
    rows = []
    for entry, due in found:
        last = history.latest(entry.name, 1)
        row = {"name": entry.name, "cron": entry.cron, "timezone": entry.timezone}
        row |= {"next": None if due is None else due.isoformat(), "paused": due is None}
        rows.append(row | {"last": last[0].values() if last else None, "job_file": entry.job_file})
    pid = load("pipeline.jobs.server_state").server_pid(opened)
    shown = [[r["name"], r["cron"], r["next"] or "paused", (r["last"] or {}).get("status", "never ran")] for r in rows]
    lines = [_columns(["name", "cron", "next", "last run"], shown)] if shown else ["no jobs: add one with `jobs add`"]
    lines += [f"{name}: its row holds no job; `dask-rl jobs remove {name}` forgets it" for name in damaged]
    lines.append("no server is running" if pid is None else f"served by pid {pid}")
    return Output({"jobs": rows, "damaged": damaged, "server_pid": pid}, "\n".join(lines))


@command(jobs, "show")
def show(name: Name, home: Home = None) -> Output:
    """Show a job: its next times, the run in use, its last run."""
    with load("pipeline.jobs.extra").needs_extra():
        schedule = load("pipeline.jobs.schedule")
    opened = _home(home)
    with schedule.open_schedule(opened) as jobs_:
        entry, due = jobs_.get(name)
    times = [] if due is None else [time.isoformat() for time in schedule.next_times(entry, 5)]
    values = entry.model_dump(mode="json") | {"paused": due is None, "next": times}
    values |= {"runs": None, "current": None, "problem": None}
    try:
        base = load("pipeline.jobs.batch_job").load_batch_job(entry.job_file, entry.directory).base
        values["runs"] = str(base)
        current = load("pipeline.jobs.promotion").current_run(base)
        values["current"] = None if current is None else str(current)
    except (ConfigError, RunStateError) as error:
        values["problem"] = str(error)
    last = load("pipeline.jobs.history").History(opened.database).latest(name, 1)
    values["last"] = last[0].values() if last else None
    shown = values | {"last": _one_line(values["last"]) if last else "never ran", "next": times or "paused"}
    return Output(values, table(shown))


@command(jobs, "pause")
def pause(name: Name, home: Home = None) -> Output:
    """Let a job's due times pass; a run that is at work goes on."""
    with _schedule(home) as jobs_:
        jobs_.pause(name)
    return Output({"name": name, "paused": True}, f"{name} is paused")


@command(jobs, "resume")
def resume(name: Name, home: Home = None) -> Output:
    """Let a job's due times count again; what was due meanwhile is not made up for."""
    with _schedule(home) as jobs_:
        due = jobs_.resume(name)
    return Output({"name": name, "paused": False, "next": due.isoformat()}, f"{name} is due at {due.isoformat()}")


@command(jobs, "remove")
def remove(name: Name, home: Home = None) -> Output:
    """Forget a job; its history and its runs stay, and a run that is at work goes on."""
    with _schedule(home) as jobs_:
        jobs_.remove(name)
    return Output({"name": name}, f"{name} is removed; its runs and their history stay")


@command(jobs, "run-now")
def run_now(name: Name, time: Time = None, home: Home = None) -> Output:
    """Have the server run a job beside its schedule, whatever `when` says; or go on with a run that failed."""
    opened = _home(home)
    with _schedule(home) as jobs_:
        jobs_.get(name)
    record = load("pipeline.jobs.requests").request_run(opened, name, time)
    pid = load("pipeline.jobs.server_state").server_pid(opened)
    hint = "" if pid is not None else "\nno server is running: it begins with `dask-rl jobs serve`"
    return Output(record.values() | {"server_pid": pid}, f"{name} is due at {record.values()['time']}{hint}")


@command(jobs, "logs")
def logs(
    name: Name,
    time: Time = None,
    lines: Annotated[int | None, typer.Option(min=1, help="Only so many of the last; default: all.")] = None,
    home: Home = None,
) -> Output:
    """Print the log of a run."""
    path, text = load("pipeline.jobs.requests").read_log(_home(home), name, time)
    shown = "\n".join(text.splitlines()[-(lines or 0) :])
    return Output({"name": name, "path": str(path), "log": shown}, shown)


@command(jobs, "history")
def history(
    name: Annotated[str | None, typer.Argument(help="Only this job's.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the last.")] = 20,
    home: Home = None,
) -> Output:
    """List what ran, the last first: status, exit code, dataset, evaluation."""
    history_ = load("pipeline.jobs.history").History(_home(home).database)
    rows = [record.values() for record in history_.latest(name, limit)]
    shown = [[_cell(row, column) for column in _TABLE_COLUMNS] for row in rows]
    lines = [_columns(_TABLE_COLUMNS, shown) if shown else "nothing ran yet"]
    lines += [f"{run}: its row holds no run" for run in history_.damaged]
    return Output({"runs": rows, "damaged": history_.damaged}, "\n".join(lines))


@command(jobs, "serve")
def serve(home: Home = None) -> Output:
    """Start runs when they are due, until SIGTERM or Ctrl-C; runs that are at work then go on by themselves."""
    with load("pipeline.jobs.extra").needs_extra():
        server = load("pipeline.jobs.server")
    with _logs_on_stderr(), load("pipeline.jobs.child_process").StopSignals() as stop:
        opened = _home(home)
        left = server.JobsServer(opened).serve(stop)
    text = "stopped" + (f"; still at work, and taken up by the next server: {', '.join(left)}" if left else "")
    return Output({"home": str(opened.path), "at_work": left}, text)


@command(jobs, "exec")
def exec_(
    job: JobFile,
    name: Annotated[str | None, typer.Option(help="Default: the file's name without its ending.")] = None,
    time: Annotated[
        str | None, typer.Option(help="When the run is due, ISO 8601; names it. The same again goes on. Default: now.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the newest run where it was interrupted or killed; else begin one."),
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, as in a.b=c; as often as needed."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Write the run's output into its log only.")] = False,
    home: Home = None,
) -> Output:
    """Run a job once, with retries, time limit and what follows it; for cron, systemd and their like."""
    names, times, running = (load(f"pipeline.jobs.{module}") for module in ("names", "times", "execute"))
    records, reporter = load("pipeline.jobs.run_record"), load("pipeline.jobs.reporter")
    chosen = names.default_name(job) if name is None else names.check_job_name(name)
    due = times.whole_seconds(times.now()) if time is None else times.parse_time(time)
    if resume and time is None:
        due = load("pipeline.jobs.left_over").newest_unfinished(job, set_ or ()) or due
    history = load("pipeline.jobs.history").History(_home(home).database)
    with load("pipeline.jobs.child_process").StopSignals() as stop:
        wanted = records.RunRecord(job=chosen, time=due)
        reporting = reporter.Reporter(history, stop)
        record = running.execute(job, wanted, reporting, stop, echo=not quiet, overrides=set_ or ())
    values = record.values()
    return Output(values, table({key: value for key, value in values.items() if value is not None}), _exit_code(record))


add_render(jobs)


def _exit_code(record: Any) -> int:
    if record.status == "interrupted":
        return EXIT_INTERRUPTED
    if record.status == "complete":
        return EXIT_DONE
    return int(record.exit_code) if record.exit_code in (EXIT_DONE, EXIT_USAGE) else EXIT_FAILED


def _home(path: Path | None) -> Any:
    return load("pipeline.jobs.home").JobsHome(path).create()


def _schedule(home: Path | None) -> Any:
    with load("pipeline.jobs.extra").needs_extra():
        return load("pipeline.jobs.schedule").open_schedule(_home(home))


@contextlib.contextmanager
def _logs_on_stderr() -> Iterator[None]:
    """Have the server's log on stderr: lines with a time, or records where those are asked for."""
    with contextlib.ExitStack() as before:
        for name, level in (("dask_rl.jobs", logging.INFO), ("apscheduler", logging.WARNING)):
            logger = logging.getLogger(name)
            before.callback(logger.setLevel, logger.level)
            logger.setLevel(level)
            if current_records() is None:
                handler = logging.StreamHandler(sys.stderr)
                handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
                before.callback(logger.removeHandler, handler)
                logger.addHandler(handler)
                before.callback(setattr, logger, "propagate", logger.propagate)
                logger.propagate = False
        yield


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in [head, *rows])


def _cell(row: dict[str, Any], column: str) -> str:
    if column == "dataset":
        return " ".join(content_hash[:_HASH_LETTERS] for content_hash in row["datasets"].values())
    value = (row["evaluation"] or {}).get("return_mean") if column == "return" else row[column]
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}…"


def _one_line(row: dict[str, Any]) -> str:
    return ", ".join(filter(None, (_cell(row, column) for column in ("time", "status", "return", "message"))))
