"""URLs of datasets: how the names of their files follow, and what of them may be shown."""

import re
from dataclasses import dataclass

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*")
_USERINFO = re.compile(r"(://)[^/\s]*@")
_PART = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9_.-]+"
_KEY = re.compile(f"{_PART}(?:/{_PART})*")


def as_url(path: str) -> str | None:
    """Return the URL that this is, None for a path; `Path` has made one slash of two, or of three."""
    found = re.match(r"((?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+:)(/+)", path)
    if found is None:
        return None
    scheme, slashes = found.groups()
    if slashes == "/":
        slashes = "///" if scheme == "file:" else "//"
    return scheme + slashes + path[found.end() :]


def redact(text: str) -> str:
    """Return a text without user names, passwords, queries and fragments in its URLs: they may be secrets."""
    return _URL.sub(lambda match: _USERINFO.sub(r"\1", re.split(r"[?#]", match.group())[0]), text)


def has_password(url: str) -> bool:
    """Whether a URL holds a user's password."""
    found = re.search(r"://([^/?#\s]*)@", url)
    return found is not None and ":" in found.group(1)


@dataclass(frozen=True)
class Address:
    """A URL, or a path of one file system, that files lie below; a query goes with the name of each file."""

    base: str
    query: str = ""

    @classmethod
    def split(cls, url: str) -> "Address":
        """Return the address of a URL; only web servers know queries, elsewhere `?` is part of a name."""
        base, mark, query = url.partition("?") if url.startswith(("http://", "https://")) else (url, "", "")
        return cls(base.rstrip("/"), mark + query)

    def of(self, key: str) -> str:
        """Return the address of one file.

        Raises:
            ValueError: the name could lead elsewhere.
        """
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no name of letters, digits, dots, dashes and underscores")
        return f"{self.base}/{key}{self.query}"
