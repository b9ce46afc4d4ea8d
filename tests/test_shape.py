"""What the files of a sweep must look like."""

import pytest

from bcls._core.config import check_shape

SHAPE = {
    "rsum": float,
    "rows": [str],
    "spaces": {str: {str: list}},
    "seeds?": [int],
    "claims?": bool,
    "columns?": str | None,
}
RIGHT = {"rsum": 1, "rows": ["a"], "spaces": {"a": {"lr": [1, 2]}}, "more": None}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"rsum": float("nan")},
        {"rsum": -2.5},
        {"rows": []},
        {"seeds": [1]},
        {"claims": False},
        {"columns": None},
        {"columns": "a"},
    ],
)
def test_valid_objects(more):
    check_shape("file", {**RIGHT, **more}, SHAPE, "mend it")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rsum": "1"}, "`file, rsum`: expected a value of type float, got '1'; mend it"),
        ({"rsum": True}, "`file, rsum`: expected a value of type float, got True"),
        ({"rsum": float("inf")}, "`file, rsum`: expected a value of type float, got inf"),
        ({"rsum": 10**400}, "`file, rsum`: expected a value of type float, got 1000"),
        ({"rows": "a"}, "`file, rows`: expected a list, got 'a'"),
        ({"rows": ["a", 1]}, "`file, rows, 1`: expected a value of type str, got 1"),
        ({"spaces": {"a": []}}, "`file, spaces, a`: expected a JSON object, got []"),
        ({"spaces": {"a": {"lr": 1}}}, "`file, spaces, a, lr`: expected a value of type list, got 1"),
        ({"seeds": None}, "`file, seeds`: expected a list, got None"),
        ({"seeds": [1.0]}, "`file, seeds, 0`: expected a value of type int, got 1.0"),
        ({"columns": 1}, "`file, columns`: expected a value of type str | None, got 1"),
        ({"spaces": {"x" * 500: 1}}, "`file, spaces, xxx"),
    ],
)
def test_errors_are_short(more, message):
    with pytest.raises(ValueError, match="expected") as raised:
        check_shape("file", {**RIGHT, **more}, SHAPE, "mend it")
    assert str(raised.value).startswith(message)
    assert len(str(raised.value)) < 200


def test_a_missing_key_is_named():
    with pytest.raises(ValueError, match="`file`: expected `rsum`, got none; mend it"):
        check_shape("file", {}, SHAPE, "mend it")
