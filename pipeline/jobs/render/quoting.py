"""Values in the words of other programs; each comes back as it was, or is refused.

shell       shlex.quote
systemd     words of Exec lines, and plain values such as paths
cron        a shell's line in which % ends it
YAML        double quotes, in which everything can be written
"""

import re
import shlex
from collections.abc import Iterable

from dask_rl.storage.errors import ConfigError, explain

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:=,@+-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%", "$": "$$"}


def shell_words(words: Iterable[str]) -> str:
    """Return words as a line of shell."""
    return " ".join(shlex.quote(text_of(word)) for word in words)


def shell(word: str) -> str:
    """Return one word of shell."""
    return shell_words([word])


def cron_command(words: Iterable[str]) -> str:
    """Return words as a command of a crontab.

    Raises:
        ConfigError: a word has more than one line, or a backslash, which not all crons leave alone.
    """
    line = shell_words(words)
    if not line.isprintable() or "\\" in line:
        allowed = "for cron: printable characters in one line, no backslashes"
        raise ConfigError(explain("command", got=repr(line), allowed=allowed, fix="move or rename what it names"))
    return line.replace("%", "\\%")


def systemd_words(words: Iterable[str]) -> str:
    """Return words as an Exec line of a unit: without shell, variables or specifiers."""
    return " ".join(map(_systemd_word, words))


def systemd_value(value: str) -> str:
    """Return a path or a text for a line of a unit that is taken as it stands.

    Raises:
        ConfigError: it cannot be written so.
    """
    if not value.isprintable() or value != value.strip() or value.endswith("\\"):
        allowed = "for systemd: printable characters, no space at an end, no backslash at the end"
        raise ConfigError(explain("path", got=repr(value), allowed=allowed, fix="move or rename it"))
    return value.replace("%", "%%")


def comment(text: str) -> str:
    """Return text for a comment: one line, whatever it holds."""
    return text if text.isprintable() else repr(text)


def _systemd_word(word: str) -> str:
    if _PLAIN_WORD.fullmatch(text_of(word)):
        return word
    return '"' + "".join(map(_systemd_letter, word)) + '"'


def _systemd_letter(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if letter.isprintable() or ord(letter) > 0x9F:
        return letter
    return f"\\x{ord(letter):02x}" if ord(letter) < 0x80 else f"\\u{ord(letter):04x}"


def text_of(word: str) -> str:
    """Return the word; raise ConfigError where no file could hold it."""
    try:
        is_text = bool(word.encode()) or not word
    except UnicodeEncodeError:
        is_text = False
    if "\0" in word or not is_text:
        allowed = "text without null bytes, in UTF-8"
        raise ConfigError(explain("value", got=repr(word), allowed=allowed, fix="move or rename what it names"))
    return word
