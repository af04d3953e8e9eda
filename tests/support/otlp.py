"""A receiver of OTLP over HTTP: real HTTP, protobuf decoded by the specification's messages, scripted answers."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.inthread import InThread

MESSAGES = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


@dataclass(frozen=True)
class GotSpan:
    """A span that was taken."""

    raw: Span
    attributes: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.raw.name

    @property
    def seconds(self) -> float:
        return (self.raw.end_time_unix_nano - self.raw.start_time_unix_nano) / 1e9


@dataclass
class Collector(InThread):
    """`with Collector() as collector:` takes everything; `answer` says a status (None: never) for a message."""

    answer: Callable[[str, Any], int | None] = lambda path, message: 200
    messages: list[tuple[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    port: int = 0

    def __enter__(self) -> Self:
        server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        server.daemon_threads = True
        self.port = server.server_address[1]
        self.serve(server)
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[GotSpan]:
        return [
            GotSpan(span, {one.key: _value(one.value) for one in span.attributes})
            for path, message in self.messages
            if path == "/v1/traces"
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, begin: str) -> list[GotSpan]:
        """The spans whose names begin so."""
        return [span for span in self.spans if span.name.startswith(begin)]

    @property
    def points(self) -> dict[tuple[str, str, str], Any]:
        """The newest data points, by metric, kind of token and error."""
        found = {}
        for path, message in self.messages:
            for resource in message.resource_metrics if path == "/v1/metrics" else ():
                for metric in resource.scope_metrics[0].metrics:
                    for point in metric.histogram.data_points:
                        told = {one.key: _value(one.value) for one in point.attributes}
                        found[metric.name, told.get("gen_ai.token.type", ""), told.get("error.type", "")] = point
        return found

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = gzip.decompress(self.rfile.read(int(self.headers["content-length"])))
                collector.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                message = MESSAGES[self.path]()
                message.ParseFromString(body)
                status = collector.answer(self.path, message)
                if status is None:
                    collector._over.wait()
                    return
                if status == 200:
                    collector.messages.append((self.path, message))
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        return Handler


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
