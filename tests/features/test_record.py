"""What a manifest beside features says, and how differences are told."""

import json

import pytest

from bcls.features.arrays import difference


@pytest.mark.parametrize("before", [{"side": "x" * 10_000}, {"k" * 10_000: 1, "side": 1}])
def test_a_difference_is_told_in_few_words(before):
    found = difference(json.loads(json.dumps(before)), {"side": 1})
    assert found is not None
    assert all(len(part) < 300 for part in found)
