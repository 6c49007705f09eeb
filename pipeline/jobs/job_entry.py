"""A job as it was added to a schedule."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from .names import check_job_name


def _absolute(value: str) -> str:
    if not Path(value).is_absolute() or "\0" in value:
        raise ValueError("an absolute path")
    return value


AbsolutePath = Annotated[str, AfterValidator(_absolute)]


class JobEntry(BaseModel):
    """What a row of the job store holds, as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Annotated[str, AfterValidator(check_job_name)]
    """The job's name, unique in a home."""
    cron: str
    """When it is due."""
    timezone: str
    """IANA name of the zone in which cron is meant."""
    job_file: AbsolutePath
    """Its YAML file, read anew for each run."""
    directory: AbsolutePath
    """Working directory of its runs: where it was added."""
    misfire_grace_seconds: int | None = Field(None, ge=1)
    """How late a run may begin, else it is missed; None: however late."""
    added: datetime
    """When."""
