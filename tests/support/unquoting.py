"""How other programs take quoted words apart, written from their manuals."""

import subprocess


def run_by_shell(line):
    """The words that a shell makes of a line."""
    command = ["sh", "-c", f"printf '%s\\0' {line}"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return done.stdout.decode().split("\0")[:-1]


def read_by_cron(line):
    """What cron hands to the shell: a % ends the command, and a backslash protects it."""
    command, letters = "", iter(line)
    for letter in letters:
        if letter == "\\":
            following = next(letters)
            command += following if following in "%\\" else letter + following
        elif letter == "%":
            break
        else:
            command += letter
    return command


def read_by_systemd(line):
    """The words of an Exec line, after quotes, escapes of C, specifiers and variables; as systemd.service(5) says."""
    escapes = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "s": " ", "a": "\a", "b": "\b"}
    found, word, is_quoted, at = [], None, False, 0
    while at < len(line):
        letter, rest = line[at], line[at + 1 :]
        if letter == '"':
            is_quoted, word = not is_quoted, word or ""
        elif letter == "\\":
            digits = {"x": 2, "u": 4}.get(rest[0], 0)
            code = rest[1 : 1 + digits]
            word = (word or "") + (chr(int(code, 16)) if digits else escapes[rest[0]])
            at += 1 + digits
        elif letter in "%$":
            assert rest[:1] == letter, f"an expansion: {line[at:]}"
            word, at = (word or "") + letter, at + 1
        elif letter == " " and not is_quoted:
            found, word = [*found, word] if word is not None else found, None
        else:
            assert letter not in "\n;" or is_quoted
            word = (word or "") + letter
        at += 1
    assert not is_quoted
    return [*found, word] if word is not None else found
