"""Tables for notebooks say what they are given and run nothing of it."""

from dask_rl.storage.html import html_grid, html_table

EVIL = "<script>alert('&')</script>"
ESCAPED = "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;"


def test_everything_is_escaped():
    for html in (html_table(EVIL, {EVIL: EVIL}), html_grid(EVIL, [EVIL], [[EVIL]])):
        assert html.count(ESCAPED) == 3
        assert "<script>" not in html


def test_values_are_shown_as_people_read_them():
    assert "<td>0.333333</td>" in html_table("t", {"third": 1 / 3})
    assert html_grid("t", ["a", "b"], [[1, None]]).endswith("<tr><td>1</td><td></td></tr></tbody></table>")
