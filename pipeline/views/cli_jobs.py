"""`dask-rl jobs …`: training again and again, here or under somebody else's scheduler."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from dask_rl.pipeline.runs.logs import current_records
from dask_rl.storage.errors import ConfigError, RunStateError

from .cli_command import Output, command, load, table
from .cli_job_arguments import Home, JobFile, Name, columns, one_line, open_home, open_schedule
from .cli_job_runs import add_runs
from .cli_render import add_render

jobs = typer.Typer(help="Train again and again: schedule jobs, serve them, see what ran.", no_args_is_help=True)

_LISTED = ("name", "cron", "timezone")


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
    datasets = load("pipeline.jobs.batch_job").load_batch_job(job).datasets
    entry = entries.JobEntry(
        name=names.default_name(job) if name is None else names.check_job_name(name),
        cron=cron,
        timezone=trigger.local_timezone() if timezone is None else timezone,
        job_file=str(job.absolute()),
        directory=os.getcwd(),
        misfire_grace_seconds=misfire_grace_seconds,
        added=times.now(),
    )
    opened = open_home(home)
    with schedule.open_schedule(opened) as jobs_:
        due = jobs_.add(entry)
    values = {"name": entry.name, "next": None if due is None else due.isoformat(), "paused": due is None}
    values |= {key: getattr(entry, key) for key in ("cron", "timezone", "job_file", "directory")}
    pid = load("pipeline.jobs.server_state").server_pid(opened)
    values |= {"home": str(opened.path), "server_pid": pid}
    values["warnings"] = load("pipeline.jobs.datasets").what_is_wrong(datasets)
    for warning in values["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    hint = "" if pid is not None else "\nno server is running: start `dask-rl jobs serve`"
    when = f"is due at {due.isoformat()}" if due else f"stays paused: `dask-rl jobs resume {entry.name}` ends that"
    return Output(values, f"{entry.name} {when}{hint}")


@command(jobs, "list")
def list_(home: Home = None) -> Output:
    """List the jobs: when each is due, and the run that is at work, else how the last one ended."""
    with load("pipeline.jobs.extra").needs_extra():
        schedule = load("pipeline.jobs.schedule")
    opened = open_home(home)
    history = load("pipeline.jobs.history").History(opened.database)
    with schedule.open_schedule(opened) as jobs_:
        found, damaged = jobs_.jobs(), jobs_.damaged()
    rows = []
    for entry, due in found:
        last = history.at_work_or_last(entry.name)
        row = {"name": entry.name, "cron": entry.cron, "timezone": entry.timezone}
        row |= {"next": None if due is None else due.isoformat(), "paused": due is None}
        rows.append(row | {"last": last.values() if last else None, "job_file": entry.job_file})
    pid = load("pipeline.jobs.server_state").server_pid(opened)
    shown = [[*(r[key] for key in _LISTED), r["next"] or "paused", _status(r["last"])] for r in rows]
    lines = [columns([*_LISTED, "next", "last run"], shown)] if shown else ["no jobs: add one with `jobs add`"]
    lines += [f"{name}: its row holds no job; `dask-rl jobs remove {name}` forgets it" for name in damaged]
    lines.append("no server is running" if pid is None else f"served by pid {pid}")
    return Output({"jobs": rows, "damaged": damaged, "server_pid": pid}, "\n".join(lines))


@command(jobs, "show")
def show(name: Name, home: Home = None) -> Output:
    """Show a job: its next times, the run in use, the run at work or its last one."""
    with load("pipeline.jobs.extra").needs_extra():
        schedule = load("pipeline.jobs.schedule")
    opened = open_home(home)
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
    last = load("pipeline.jobs.history").History(opened.database).at_work_or_last(name)
    values["last"] = last.values() if last else None
    shown = values | {"last": one_line(values["last"]) if last else "never ran", "next": times or "paused"}
    shown["misfire_grace_seconds"] = values["misfire_grace_seconds"] or "any"
    return Output(values, table(shown))


@command(jobs, "pause")
def pause(name: Name, home: Home = None) -> Output:
    """Let a job's due times pass; a run that is at work goes on."""
    with open_schedule(home) as jobs_:
        jobs_.pause(name)
    return Output({"name": name, "paused": True}, f"{name} is paused")


@command(jobs, "resume")
def resume(name: Name, home: Home = None) -> Output:
    """Let a job's due times count again; what was due meanwhile is not made up for."""
    with open_schedule(home) as jobs_:
        due = jobs_.resume(name)
    return Output({"name": name, "paused": False, "next": due.isoformat()}, f"{name} is due at {due.isoformat()}")


@command(jobs, "remove")
def remove(name: Name, home: Home = None) -> Output:
    """Forget a job; its history and its runs stay, and a run that is at work goes on."""
    with open_schedule(home) as jobs_:
        jobs_.remove(name)
    return Output({"name": name}, f"{name} is removed; its runs and their history stay")


@command(jobs, "serve")
def serve(home: Home = None) -> Output:
    """Start runs when they are due, until SIGTERM or Ctrl-C; runs that are at work then go on by themselves."""
    with load("pipeline.jobs.extra").needs_extra():
        server = load("pipeline.jobs.server")
    with _logs_on_stderr(), load("pipeline.jobs.child_process").StopSignals() as stop:
        opened = open_home(home)
        left = server.JobsServer(opened).serve(stop)
    text = "stopped" + (f"; still at work, and taken up by the next server: {', '.join(left)}" if left else "")
    return Output({"home": str(opened.path), "at_work": left}, text)


add_runs(jobs)
add_render(jobs)


def _status(run: Mapping[str, Any] | None) -> str:
    return "never ran" if run is None else str(run["status"])


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
