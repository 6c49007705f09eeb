"""A line for a crontab."""

from dask_rl.storage.errors import ConfigError, explain

from .request import RenderRequest
from .templates import fill


def render_cron(request: RenderRequest) -> dict[str, str]:
    """Return the line, with a comment above it.

    Raises:
        ConfigError: no cron expression; a time zone, of which crontabs know nothing; a path that cannot stand there.
    """
    cron = request.needs_cron("cron")
    if request.timezone is not None:
        allowed = "none: cron means the machine's"
        fix = "take `jobs render systemd` or `jobs serve`, or leave it out"
        raise ConfigError(explain("--timezone", got=request.timezone, allowed=allowed, fix=fix))
    words = request.exec_words("--resume", "--quiet")
    text = fill("crontab.jinja", name=request.name, cron=cron.text, directory=str(request.directory), words=words)
    return {f"{request.unit}.crontab": text}
