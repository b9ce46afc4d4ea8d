import pytest

from bcls.search.engine import SearchFilter, parse_filter, words_of


def test_filter_dates():
    assert parse_filter(after="1970", before="1970-01-02") == SearchFilter(after=0.0, before=86400.0)
    assert parse_filter(after="1970-01-01T01:00").after == 3600.0
    assert parse_filter() == SearchFilter()
    assert parse_filter(under="a/") != SearchFilter()


@pytest.mark.parametrize("text", ["yesterday", "2024-13", "05-2024", "2024-02-30", "20x4"])
def test_invalid_dates(text):
    with pytest.raises(ValueError, match=r"`after`: expected a date such as 2024, 2024-05 or 2024-05-17, got"):
        parse_filter(after=text)


def test_filters_that_match_nothing_are_rejected():
    with pytest.raises(ValueError, match="`before`: expected a date later than 2024, got '2024-01-01'"):
        parse_filter(after="2024", before="2024-01-01")
    with pytest.raises(ValueError, match="`words`: expected at least one word"):
        parse_filter(words="?!")


def test_words():
    assert words_of(["Ein Weg, STRASSE straße", "weg"]) == ("ein", "strasse", "weg")
    assert words_of(("x" * 300,)) == ("x" * 200,)
    assert words_of([]) == ()


def test_prefix_that_is_not_unicode():
    with pytest.raises(ValueError, match=r"`under`: expected a prefix that is valid Unicode text, got '.*udcff'"):
        parse_filter(under="\udcff")
