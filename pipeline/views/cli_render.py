"""`dask-rl jobs render …`: files for schedulers that others run."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dask_rl.storage.errors import ConfigError, explain

from .cli_command import Output, command, load


class Target(StrEnum):
    """Whose scheduler."""

    CRON = "cron"
    SYSTEMD = "systemd"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


def add_render(jobs: typer.Typer) -> None:
    """Add the command to the group of `dask-rl jobs`."""
    command(jobs, "render")(render)


def render(
    target: Annotated[Target, typer.Argument(help="Whose scheduler.", show_default=False)],
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job.", show_default=False)],
    cron: Annotated[
        str | None,
        typer.Option(help="Five fields as in crontab(5), needed for cron; without it somebody starts the job by hand."),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="IANA name of the zone that cron is meant in; default: the machine's.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Default: the file's name without its ending.")] = None,
    output: Annotated[Path | None, typer.Option(help="Directory for the files; default: print them.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the job, as in a.b=c."),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            help="Where its history is to be; default: $DASK_RL_HOME, else as for `exec`. "
            "Not for kubernetes: .dask-rl on the first volume.",
        ),
    ] = None,
) -> Output:
    """Print files by which cron, systemd, SLURM or Kubernetes run the job; each calls `dask-rl jobs exec`."""
    request = _request(job, cron, timezone, name, set_ or [], home)
    files: dict[str, str] = load("pipeline.jobs.render.targets").TARGETS[target.value](request)
    values: dict[str, Any] = {"name": request.name, "target": target.value, "files": files, "written": []}
    if output is None:
        return Output(values, "\n".join(files.values()).rstrip("\n"))
    written = [_write(output / file, text) for file, text in files.items()]
    return Output(values | {"written": written}, "\n".join(written))


def _request(
    file: Path, cron: str | None, timezone: str | None, name: str | None, overrides: list[str], home: Path | None
) -> Any:
    names, expressions = load("pipeline.jobs.names"), load("pipeline.jobs.cron_expression")
    return load("pipeline.jobs.render.request").RenderRequest(
        job=load("pipeline.runs.job").load_job(file, overrides, run_imports=True),
        text=load("pipeline.runs.yaml_file").read_text(file),
        file=file.absolute(),
        directory=Path.cwd(),
        name=names.default_name(file) if name is None else names.check_job_name(name),
        cron=None if cron is None else expressions.parse_cron(cron),
        timezone=None if timezone is None else load("pipeline.jobs.render.schedules").check_timezone(timezone),
        home=_home(home),
        overrides=overrides,
    )


def _home(given: Path | None) -> Path | None:
    """Return the home that the files are to name: another scheduler starts them without this shell's environment."""
    chosen = given or os.environ.get(load("pipeline.jobs.home").HOME_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else None


def _write(path: Path, text: str) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        load("pipeline.runs.run_directory").write_atomic(path, text)
    except OSError as error:
        got, fix = f"{path}: {error.strerror or error}", "give a directory that can be written"
        raise ConfigError(explain("--output", got=got, fix=fix)) from None
    return str(path)
