"""Small tables for notebooks; whatever comes in is escaped."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any


def html_table(title: str, rows: Mapping[str, Any]) -> str:
    """Return a table of names and values under a title."""
    body = "".join(f"<tr><th>{_cell(name)}</th><td>{_cell(value)}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{_cell(title)}</caption><tbody>{body}</tbody></table>"


def html_grid(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table with a row of column names, under a title."""
    head = "".join(f"<th>{_cell(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><caption>{_cell(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    """Return a value as people read it: six digits of a float, nothing for None."""
    if value is None:
        return ""
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))
