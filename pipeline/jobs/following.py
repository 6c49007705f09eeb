"""on_success and on_failure: the user's own commands, told about the run by their environment."""

from pathlib import Path

from dask_rl.pipeline.runs.batch_config import BatchConfig

from .child_process import StopSignals, run_command
from .log_file import LogFile
from .run_record import RunRecord
from .times import iso


def run_following(batch: BatchConfig, record: RunRecord, log: LogFile, stop: StopSignals) -> str | None:
    """Run the command that is to follow a run that ended so; return what went wrong with it, or None."""
    name = "on_success" if record.status == "complete" else "on_failure"
    command = getattr(batch, name)
    if not command:
        return None
    log.say(f"{name}: {' '.join(command)}")
    try:
        ended = run_command(
            command,
            sink=log,
            stop=stop,
            directory=Path.cwd(),
            environment=_environment(record),
            time_limit_seconds=batch.command_time_limit_seconds,
            stop_wait_seconds=batch.stop_wait_seconds,
            stops_group=True,
        )
    except OSError as error:
        return f"{name} failed: {error.strerror or error}"
    if ended.timed_out:
        return f"{name} took longer than {batch.command_time_limit_seconds:g} s"
    return f"{name} failed: {ended.reason}" if ended.returncode else None


def _environment(record: RunRecord) -> dict[str, str]:
    """Return what a command is told; what is not known is empty."""
    evaluation = record.evaluation or {}
    values = {
        "JOB": record.job,
        "TIME": iso(record.time),
        "RUN": record.run,
        "STATUS": record.status,
        "EXIT_CODE": record.exit_code,
        "ATTEMPTS": record.attempts,
        "PROMOTED": None if record.promoted is None else int(record.promoted),
        "RETURN_MEAN": evaluation.get("return_mean"),
        "WEIGHTS_HASH": record.weights_hash,
        "MESSAGE": record.message,
    }
    text = {f"DASK_RL_{key}": "" if value is None else str(value) for key, value in values.items()}
    return {key: value.replace("\0", "") for key, value in text.items()}
