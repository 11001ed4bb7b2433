"""The OpenAPI description against the service: whatever fits it is answered as it says."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks
from tests.serve.conftest import Api, Process

from equipoise.serve.guard import BULK

EXAMPLES = 7
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]


@schemathesis.serializer(*{kind for kinds in BULK.values() for kind in kinds})
def plain_bytes(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """Return a body that is not JSON as it is sent."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


def test_whatever_fits_the_description_is_answered_as_it_says(
    service: Process, standing: Api
) -> None:
    schema = schemathesis.openapi.from_dict(standing.get("/openapi.json").json())
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path == "/v1/admin/reload":  # needs no fuzzing, and tells the parent
            continue

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def answered(case: schemathesis.Case) -> None:
            nonlocal tried
            tried += 1
            answer = case.call(base_url=service.address)
            case.validate_response(answer, checks=CHECKS)

        answered()
    assert tried > 100
    with service.client() as client:  # and it still answers
        assert client.summary()["items"] == 80


def test_every_route_is_described(standing: Api) -> None:
    description = standing.get("/openapi.json").json()
    assert {
        *("/v1/recommend", "/v1/recommend:batch", "/v1/recommend/{user}", "/v1/similar"),
        *(
            "/v1/trending",
            "/v1/explain",
            "/v1/score",
            "/v1/items",
            "/v1/items/{item}",
            "/v1/events",
        ),
        *("/v1/events:import", "/v1/events/{event}", "/v1/export/events", "/v1/export/user"),
        *("/v1/users/{user}", "/v1/models", "/v1/model", "/healthz", "/readyz", "/metrics"),
    } <= set(description["paths"])
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            assert route["description"], (method, path)
            assert "200" in route["responses"]
            kinds = [
                response["content"]
                for code, response in route["responses"].items()
                if code >= "400"
            ]
            assert kinds
            assert all("application/problem+json" in kind for kind in kinds)
