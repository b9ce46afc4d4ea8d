"""Requests generated from the OpenAPI description never cause a server error."""

import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bcls.web import create_app
from tests.web.factories import listening, make_site

WITH_A_NUMBER = "/api/photos/{number}"


@pytest.fixture(scope="module")
def described(folders):
    """Address of a running app, and its OpenAPI schema."""
    schemathesis = pytest.importorskip("schemathesis", reason="needs pip install schemathesis")
    site = make_site(folders, compare=False)
    with listening(site) as address, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield address, schemathesis.openapi.from_dict(create_app(site).openapi())


def ask(address, operation, examples):
    """Send valid and invalid requests to one operation; returns the statuses."""
    import schemathesis

    statuses = set()
    modes = list(schemathesis.GenerationMode)
    if not {"parameters", "requestBody"} & set(operation.definition.raw):
        modes = [schemathesis.GenerationMode.POSITIVE]  # nothing to get wrong

    @given(data=st.data())
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    def one(data):
        for mode in modes:
            case = data.draw(operation.as_strategy(generation_mode=mode))
            answer = case.call(base_url=address)
            assert answer.status_code < 500, case.as_curl_command()
            kind = answer.headers["content-type"][0]
            assert kind == "application/problem+json" or answer.status_code < 400, case.as_curl_command()
            if str(answer.status_code) in operation.definition.raw["responses"]:
                case.validate_response(answer, checks=[schemathesis.checks.response_schema_conformance])
            statuses.add(answer.status_code)

    one()
    return statuses


def ask_everything(described, examples):
    address, schema = described
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 10
    statuses = {operation.label: ask(address, operation, examples) for operation in operations}
    assert 200 in statuses["GET /api/search"]
    assert {200, 404, 422} <= set.union(*statuses.values())


def test_no_server_errors(described):
    ask_everything(described, 8)


@pytest.mark.slow
def test_no_server_errors_in_many_requests(described):
    ask_everything(described, 200)


def test_every_status_is_described(client):
    paths = client.app.openapi()["paths"]
    for path, operations in paths.items():
        for operation in operations.values():
            assert operation["description"], path
            responses = operation["responses"]
            assert {"200", "401", "403", "421", "503"} <= set(responses), path
            assert WITH_A_NUMBER not in path or {"404", "422"} <= set(responses)
            for status, response in responses.items():
                if status >= "400":
                    assert list(response["content"]) == ["application/problem+json"], (path, status)
