"""`dask-rl jobs run-now`, `stop`, `logs`, `history` and `exec`: the runs of jobs."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from .cli_command import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, Output, command, load, table
from .cli_job_arguments import EndedTime, Home, JobFile, Name, Time, cell, columns, open_home, open_schedule

_TABLE_COLUMNS = ("job", "time", "status", "exit_code", "attempts", "dataset", "return", "promoted", "message")


def add_runs(jobs: typer.Typer) -> None:
    """Add the commands to the group of `dask-rl jobs`."""
    commands: dict[str, Callable[..., Output]] = {
        "run-now": run_now,
        "stop": stop,
        "logs": logs,
        "history": history,
        "exec": exec_,
    }
    for name, function in commands.items():
        command(jobs, name)(function)


def run_now(name: Name, time: EndedTime = None, home: Home = None) -> Output:
    """Have the server run a job beside its schedule, whatever `when` says; or go on with one that did not end well."""
    opened = open_home(home)
    with open_schedule(home) as jobs_:
        jobs_.get(name)
    record = load("pipeline.jobs.requests").request_run(opened, name, time)
    pid = load("pipeline.jobs.server_state").server_pid(opened)
    hint = "" if pid is not None else "\nno server is running: it begins with `dask-rl jobs serve`"
    return Output(record.values() | {"server_pid": pid}, f"{name} is due at {record.values()['time']}{hint}")


def stop(
    name: Name,
    timeout_seconds: Annotated[float, typer.Option(min=0, help="How long to wait for its end.")] = 120,
    home: Home = None,
) -> Output:
    """Have a job's run that is at work save and end as interrupted; the server does not go on with it by itself."""
    record = load("pipeline.jobs.requests").stop_run(open_home(home), name, timeout_seconds)
    values = record.values()
    on = f"`dask-rl jobs run-now {name} --time {values['time']}` goes on with it"
    text = f"is asked to stop, and at work still after {timeout_seconds:g} s" if record.is_open else record.status
    hint = f"; {on}" if record.status == "interrupted" else ""
    return Output(values, f"{name}: the run of {values['time']} is {text.removeprefix('is ')}{hint}")


def logs(
    name: Name,
    time: Time = None,
    lines: Annotated[int | None, typer.Option(min=1, help="Only so many of the last; default: all.")] = None,
    home: Home = None,
) -> Output:
    """Print the log of a run."""
    path, text = load("pipeline.jobs.requests").read_log(open_home(home), name, time)
    shown = "\n".join(text.splitlines()[-(lines or 0) :])
    return Output({"name": name, "path": str(path), "log": shown}, shown)


def history(
    name: Annotated[str | None, typer.Argument(help="Only this job's.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the last.")] = 20,
    home: Home = None,
) -> Output:
    """List what ran, the last first: status, exit code, dataset, evaluation."""
    history_ = load("pipeline.jobs.history").History(open_home(home).database)
    if name is not None:
        load("pipeline.jobs.requests").check_known(history_, name)
    rows = [record.values() for record in history_.latest(name, limit)]
    shown = [[cell(row, column) for column in _TABLE_COLUMNS] for row in rows]
    lines = [columns(_TABLE_COLUMNS, shown) if shown else "nothing ran yet"]
    lines += [f"{run}: its row holds no run" for run in history_.damaged]
    return Output({"runs": rows, "damaged": history_.damaged}, "\n".join(lines))


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
    history = load("pipeline.jobs.history").History(open_home(home).database)
    with load("pipeline.jobs.child_process").StopSignals() as stop:
        wanted = records.RunRecord(job=chosen, time=due)
        reporting = reporter.Reporter(history, stop)
        record = running.execute(job, wanted, reporting, stop, echo=not quiet, overrides=set_ or ())
    values = record.values()
    return Output(values, table({key: value for key, value in values.items() if value is not None}), _exit_code(record))


def _exit_code(record: Any) -> int:
    if record.status == "interrupted":
        return EXIT_INTERRUPTED
    if record.status == "complete":
        return EXIT_DONE
    return int(record.exit_code) if record.exit_code in (EXIT_DONE, EXIT_USAGE) else EXIT_FAILED
