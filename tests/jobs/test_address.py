import pytest

from bcls.features.ray import _refused


def test_a_cluster_that_asks_for_a_token_is_told_apart():
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = RuntimeError("InvalidAuthToken: Authentication token is missing or incorrect.")
    with pytest.raises(ValueError, match=r"got '10.0.0.1:6379', which asks for a token; set RAY_AUTH_MODE=token"):
        _refused("10.0.0.1:6379", error)


def test_other_reasons_are_passed_on():
    with pytest.raises(ValueError, match=r"`address`: expected a running Ray cluster, got 'auto' \(no cluster found\)"):
        _refused("auto", ConnectionError("no cluster\nfound"))
