"""What is quoted for another program comes back from it as it was."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from unquoting import read_by_cron, read_by_systemd, run_by_shell

from dask_rl.pipeline.jobs.render.quoting import comment, cron_command, shell_words, systemd_value, systemd_words
from dask_rl.pipeline.jobs.render.yaml_text import yaml_block, yaml_value
from dask_rl.storage.errors import ConfigError

pytestmark = pytest.mark.service

letters = st.characters(codec="utf-8", exclude_characters="\0")
words = st.lists(st.text(letters), min_size=1, max_size=4)
NASTY = ["a b", "$HOME", "100%", "%h", "\\%", "it's", '"', "`x`", "$(x)", "a\nb", "#", "~", ";", "été", "-", ""]
OTHERWISE = ["1e3", "0x10", "yes", "No", "~", "null", "1_000", "2026-11-30", "12:30:45", ".5", "=", "<<"]
nasty = st.sampled_from(NASTY)
values = st.one_of(words, st.lists(nasty, min_size=1, max_size=4))


@given(values)
def test_words_come_back_from_a_shell(words):
    assert run_by_shell(shell_words(words)) == words


@given(values)
def test_words_come_back_from_cron_or_are_refused(words):
    try:
        line = cron_command(words)
    except ConfigError:
        assert any("\\" in word or not word.isprintable() for word in words)
        return
    assert run_by_shell(read_by_cron(line)) == words


@given(values)
def test_words_come_back_from_an_exec_line(words):
    assert read_by_systemd(systemd_words(words)) == words


@given(st.text(letters))
def test_a_plain_value_of_a_unit_is_one_line_without_specifiers_or_refused(value):
    try:
        written = systemd_value(value)
    except ConfigError:
        return
    assert written.replace("%%", "").count("%") == 0
    assert written.replace("%%", "%") == value == value.strip()
    assert len(written.splitlines()) <= 1


yaml_values = st.recursive(
    st.one_of(st.text(letters), nasty, st.integers(-(2**40), 2**40), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(letters), inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=200)
@given(yaml_values)
def test_values_come_back_from_yaml(value):
    assert yaml.safe_load(f"key: {yaml_value(value)}\nnext: 1") == {"key": value, "next": 1}
    if isinstance(value, dict | list) and value:
        assert yaml.safe_load(f"key:\n    {yaml_block(value, 4)}\nnext: 1") == {"key": value, "next": 1}


@pytest.mark.parametrize("text", OTHERWISE)
def test_text_that_other_readers_of_yaml_take_for_something_else_is_quoted(text):
    assert yaml_value(text) == yaml_value([text])[1:-1] == f'"{text}"'


@pytest.mark.parametrize("word", ["a\0b", "\ud800"])
def test_what_no_file_could_hold_is_refused(word):
    for quote in (shell_words, cron_command, systemd_words):
        with pytest.raises(ConfigError, match=r"without null bytes|one line"):
            quote([word])
    with pytest.raises(ConfigError, match="without null bytes"):
        yaml_value(word)


def test_a_comment_stays_one():
    assert comment("a\nrm -rf /") == "'a\\nrm -rf /'"
    assert comment("plain") == "plain"
