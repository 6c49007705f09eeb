"""The schedulers for which files are made."""

from collections.abc import Callable, Mapping

from .cron import render_cron
from .kubernetes import render_kubernetes
from .request import RenderRequest
from .slurm import render_slurm
from .systemd import render_systemd

TARGETS: Mapping[str, Callable[[RenderRequest], dict[str, str]]] = {
    "cron": render_cron,
    "systemd": render_systemd,
    "slurm": render_slurm,
    "kubernetes": render_kubernetes,
}
"""Each returns the text of its files by their names, or raises ConfigError."""
