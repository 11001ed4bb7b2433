"""Traces of requests by OpenTelemetry (extra `otel`), with the setting `traces`.

A span has the route of its request and no ids of users or items. It continues the trace of the
caller (`traceparent`). The id of a request without `x-request-id` is that of its trace, so that
the log and the trace can be found from each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equipoise
from equipoise.errors import MissingExtraError
from equipoise.serve.guard import EXCHANGE, App, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

UNTRACED = {"/healthz", "/readyz", "/metrics"}


def make_provider() -> TracerProvider:
    """Return a provider that exports spans by OTLP over HTTP, as the environment (OTEL_...) says.

    Raises `MissingExtraError` without the packages.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtraError(
            "traces need opentelemetry; install them with `pip install 'equipoise[serve,otel]'`"
        ) from error
    named = Resource({SERVICE_NAME: "equipoise", SERVICE_VERSION: equipoise.__version__})
    provider = TracerProvider(resource=named.merge(Resource.create()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Traced:
    """Middleware around the service: a span for each request.

    Parameters
    ----------
    app
        The service.
    provider
        Where spans go.
    """

    def __init__(self, app: App, provider: TracerProvider) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._app, self._provider = app, provider
        self._tracer = provider.get_tracer("equipoise", equipoise.__version__)
        self._trace, self._context = trace, context
        self._propagator = TraceContextTextMapPropagator()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the service."""
        return getattr(self._app, name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request within a span."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            self._provider.shutdown()  # sends the last spans
            return
        if scope["type"] != "http" or scope["path"] in UNTRACED:
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        parent = self._propagator.extract(headers)
        kind = self._trace.SpanKind.SERVER
        with self._tracer.start_as_current_span(scope["method"], parent, kind) as span:
            await self._answer(span, headers, scope, receive, send)

    async def _answer(
        self,
        span: Any,
        headers: Mapping[str, str],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if "x-request-id" not in headers:
            trace_id = self._trace.format_trace_id(span.get_span_context().trace_id)
            scope["headers"] = [*scope["headers"], (b"x-request-id", trace_id.encode())]
        # the short way to the socket does not pass here
        extensions = {**(scope.get("extensions") or {})}
        extensions.pop(EXCHANGE, None)
        scope["extensions"] = extensions
        status = 499  # the client went away

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            span.update_name(f"{scope['method']} {route}")
            span.set_attributes(
                {
                    "http.request.method": scope["method"],
                    "http.route": route,
                    "http.response.status_code": status,
                    "equipoise.request": scope.get("state", {}).get("request", ""),
                }
            )
            if status >= 500:
                span.set_status(self._trace.StatusCode.ERROR)
