"""Error messages: one line, of a readable length, safe for a terminal."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls._core.errors import check_choice, check_number, fail, quoted, shortened, visible


def message_of(*words):
    with pytest.raises(ValueError, match=r"expected .*, got .*; ") as raised:
        fail(*words)
    return str(raised.value)


@pytest.mark.parametrize(
    "got", [-1.0, None, "shape (3, 4)", "'früher'", "a, b (c): 'd'", "x" * 200, "a\\nb", ("a", 1), "日本語 café — “x”"]
)
def test_usual_messages_stay_as_they_are(got):
    assert (
        message_of("a.json, line 3", "a number", got, "see `b`")
        == f"`a.json, line 3`: expected a number, got {got}; see `b`"
    )


def test_long_values_lose_their_middle():
    message = message_of("x", "a word", "start" + "y" * 10_000_000 + "end", "shorten it")
    assert len(message) < 300
    assert message.startswith("`x`: expected a word, got startyyy")
    assert message.endswith("yyyend; shorten it")
    assert " ... 9999808 characters ... " in message


def test_long_names_and_expectations_lose_their_middle():
    message = message_of("key" + "a" * 100_000, "one of " + "b" * 100_000, 1, "shorten it")
    assert len(message) < 2000
    assert message.startswith("`keyaaa")
    assert message.endswith("bbb, got 1; shorten it")


def test_long_choices_are_refused_shortly():
    with pytest.raises(ValueError, match="`key`: expected one of 'a'") as raised:
        check_choice("key", "z" * 1_000_000, ["a"])
    assert len(str(raised.value)) < 400


def test_the_closest_choice_comes_before_the_hint():
    with pytest.raises(ValueError, match=r"got 'maen'; did you mean 'mean'\? Otherwise register it$"):
        check_choice("key", "maen", ["mean"], hint="register it")
    with pytest.raises(ValueError, match=r"got 'x'; register it$"):
        check_choice("key", "x", ["mean"], hint="register it")


@pytest.mark.parametrize("place", range(4))
def test_control_characters_are_shown(place):
    words = ["name", "this", "that", "do it"]
    words[place] = "a\x1b[2J\r\nb\x9b\u202ec\udcff\0"
    message = message_of(*words)
    assert message.isprintable()
    assert r"a\x1b[2J\r\nb\x9b\u202ec\udcff\x00" in message


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_visible_text_is_printable_and_printable_text_stays(text):
    shown = visible(text)
    assert shown.isprintable()
    assert visible(shown) == shown
    assert (shown == text) == text.isprintable()


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=100), st.integers(2, 60))
def test_shortened_text_keeps_its_ends_and_counts_the_rest(text, longest):
    short = shortened(text, longest)
    if len(text) <= longest:
        assert short == text
    else:
        end = longest // 2
        count = int(re.search(r" \.\.\. (\d+) characters \.\.\. ", short[end:])[1])
        assert (short[:end], short[-end:], count) == (text[:end], text[-end:], len(text) - 2 * end)


@pytest.mark.parametrize(
    ("system", "path", "expected"),
    [
        ("linux", "/home/my photos", "'/home/my photos'"),
        ("win32", r"C:\my photos", r'"C:\my photos"'),  # the command prompt knows no single quotes
        ("win32", r"C:\photos", r"C:\photos"),
    ],
)
def test_paths_in_commands_have_the_quotes_of_the_system(monkeypatch, system, path, expected):
    monkeypatch.setattr("sys.platform", system)
    assert quoted(path) == expected


@pytest.mark.parametrize("value", ["1", "5e-4", b"1", None, [1], "nan"])
def test_a_word_is_no_number(value):
    with pytest.raises(ValueError, match="`lr`: expected a finite number"):
        check_number("lr", value, "write it without quotes")
