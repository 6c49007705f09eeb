"""Values as YAML that every reader of it understands alike, whichever version of YAML it grew up with."""

import re
from typing import Any

import yaml

from .quoting import text_of

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class _Dumper(yaml.SafeDumper):
    """Writes text in double quotes unless it can be nothing else, and text of several lines as it is."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write what is there twice twice."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = _PLAIN.fullmatch(text_of(text)) and text.lower() not in _WORDS
    style = None if is_plain else "|" if "\n" in text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def yaml_value(value: Any) -> str:
    """Return text, numbers, lists and mappings in one line."""
    if isinstance(value, str):
        quoted = yaml.safe_dump(text_of(value), default_style='"', width=float("inf"), allow_unicode=True)
        return quoted.strip()
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n...\n").strip()


def yaml_block(value: Any, indent: int) -> str:
    """Return a mapping or a list in lines, the first of which stands behind what is there already."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=float("inf"), allow_unicode=True)
    return text.rstrip("\n").replace("\n", "\n" + " " * indent)
