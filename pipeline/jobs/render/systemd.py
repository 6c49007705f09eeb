"""A service and a timer for systemd, of a user's own or of the system."""

import math

from .request import RenderRequest
from .schedules import to_calendar
from .templates import fill

_SPARE_SECONDS = 30


def render_systemd(request: RenderRequest) -> dict[str, str]:
    """Return the service and, where the job is due at some time, its timer.

    Raises:
        ConfigError: a path that cannot stand in a unit.
    """
    service = fill(
        "service.jinja",
        name=request.name,
        unit=request.unit,
        directory=str(request.directory),
        words=request.exec_words("--resume", "--quiet"),
        stop_seconds=math.ceil(request.job.batch.stop_wait_seconds) + _SPARE_SECONDS,
    )
    files = {f"{request.unit}.service": service}
    if request.cron is not None:
        events = to_calendar(request.cron, request.timezone)
        text = fill("timer.jinja", name=request.name, unit=request.unit, cron=request.cron.text, events=events)
        files[f"{request.unit}.timer"] = text
    return files
