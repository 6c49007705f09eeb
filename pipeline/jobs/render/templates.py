"""The templates beside this file: what they say is for people to read and change."""

from pathlib import Path
from typing import Any

import jinja2

from .quoting import comment, cron_command, shell, shell_words, systemd_value, systemd_words
from .yaml_text import yaml_block, yaml_value

_FOLDER = Path(__file__).with_name("templates")


def fill(template: str, /, **values: Any) -> str:
    """Return a template with its values; each stands there through a filter for its place, or is a word of our own."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader(_FOLDER),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    filters = (comment, cron_command, shell, shell_words, systemd_value, systemd_words, yaml_block, yaml_value)
    environment.filters |= {function.__name__: function for function in filters}
    return environment.get_template(template).render(**values)
