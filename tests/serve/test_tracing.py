"""Traces: a span per request, with the trace of the caller, and none when they are off."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.serve.conftest import Serve

from equipoise.serve import tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Return the spans of services that are opened from now on."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "make_provider", lambda: provider)
    return exporter


def test_a_request_has_a_span_without_ids_of_users(
    served: Serve, spans: InMemorySpanExporter
) -> None:
    api = served(traces=True)
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    answer = api.get("/v1/recommend/u5?k=3", headers=headers)
    assert answer.headers["x-request-id"] == TRACE
    assert api.get("/v1/items/none", headers={"x-request-id": "mine-12345"}).status_code == 404
    assert api.get("/healthz").status_code == 200
    listed, missing = spans.get_finished_spans()
    assert listed.name == "GET /v1/recommend/{user:path}"
    assert f"{listed.context.trace_id:032x}" == TRACE
    assert dict(listed.attributes or {}) == {
        "http.request.method": "GET",
        "http.route": "/v1/recommend/{user:path}",
        "http.response.status_code": 200,
        "equipoise.request": TRACE,
    }
    assert "u5" not in listed.to_json()
    assert (missing.attributes or {})["http.response.status_code"] == 404
    assert (missing.attributes or {})["equipoise.request"] == "mine-12345"
    assert listed.status.is_ok or listed.status.status_code.name == "UNSET"


def test_errors_are_marked(
    served: Serve, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = served(traces=True)
    monkeypatch.setattr(api.state, "model", None)
    assert api.get("/v1/model").status_code == 500
    (span,) = spans.get_finished_spans()
    assert span.status.status_code.name == "ERROR"


class Collector(BaseHTTPRequestHandler):
    received: list[ExportTraceServiceRequest]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Return the address of a collector and what it has received."""
    received: list[ExportTraceServiceRequest] = []
    handler = type("Handler", (Collector,), {"received": received})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", received
    server.shutdown()
    server.server_close()


def test_spans_reach_a_collector(
    served: Serve,
    collector: tuple[str, list[ExportTraceServiceRequest]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, received = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    provider = tracing.make_provider()
    monkeypatch.setattr(tracing, "make_provider", lambda: provider)
    api = served(traces=True)
    api.get("/v1/models")
    provider.shutdown()
    (resource,) = received[0].resource_spans
    names = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
    assert names["service.name"] == "shop"
    assert [span.name for span in resource.scope_spans[0].spans] == ["GET /v1/models"]


def test_without_traces_nothing_of_them_is_loaded() -> None:
    code = "import sys, equipoise.serve.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not {"opentelemetry.sdk", "opentelemetry.exporter", "equipoise.serve.tracing"} & loaded
