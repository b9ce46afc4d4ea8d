import pytest

from bcls.search.engine import Where, where, words_of


def test_dates():
    assert where(after="1970", before="1970-01-02") == Where(after=0.0, before=86400.0)
    assert where(after="1970-01-01T01:00").after == 3600.0
    assert where().is_open
    assert not where(under="a/").is_open


@pytest.mark.parametrize("text", ["yesterday", "2024-13", "05-2024", "2024-02-30", "20x4"])
def test_no_dates(text):
    with pytest.raises(ValueError, match=r"`after`: expected a date such as 2024, 2024-05 or 2024-05-17, got"):
        where(after=text)


def test_limits_that_leave_nothing():
    with pytest.raises(ValueError, match="`before`: expected a date later than 2024, got '2024-01-01'"):
        where(after="2024", before="2024-01-01")
    with pytest.raises(ValueError, match="`words`: expected at least one word"):
        where(words="?!")


def test_words():
    assert words_of(["Ein Weg, STRASSE straße", "weg"]) == ("ein", "strasse", "weg")
    assert words_of(("x" * 300,)) == ("x" * 200,)
    assert words_of([]) == ()


def test_a_beginning_that_is_no_text():
    with pytest.raises(ValueError, match=r"`under`: expected a beginning of names that is text, got '.*udcff'"):
        where(under="\udcff")
