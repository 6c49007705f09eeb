"""A part of the page that is HTML of ours."""

from typing import Any

from bokeh.models.widgets import Div

from .words import STYLE


def html_part(name: str | None = None, **options: Any) -> Div:
    """Return it. Without TeX: `$$…$$` in a name from a message would be typeset, its links with scripts included."""
    return Div(name=name, disable_math=True, sizing_mode="stretch_width", stylesheets=[STYLE], **options)
