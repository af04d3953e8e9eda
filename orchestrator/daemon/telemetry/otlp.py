"""OTLP over HTTP: spans and histograms as protobuf, and the client that sends them to a receiver.

https://opentelemetry.io/docs/specs/otlp/ (1.x). The message types come from the package opentelemetry-proto (extra
`otel`). No SDK is used: an SDK measures live calls, and the store has recorded the data already.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx2
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    Histogram,
    HistogramDataPoint,
    Metric,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from orchestrator.core.errors import BackendError, UsageError
from orchestrator.core.version import __version__
from orchestrator.daemon.telemetry.spans import TraceSpan, Value
from orchestrator.daemon.telemetry.usage import HistogramPoint
from orchestrator.settings.telemetry import Telemetry

TIMEOUT_SECONDS = 10.0
REFUSED = frozenset({400, 413, 422})
"""Statuses of requests that will never be accepted. After any other error status, the same request may be accepted
later.
"""
WITHOUT_METRICS = REFUSED | {404, 405, 501}
"""Statuses of metrics that will never be accepted. Traces must not wait for a receiver that has no address for
metrics.
"""
TOO_LARGE = 413
MOST_ATTRIBUTES = 128
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ABOUT = {
    "gen_ai.client.token.usage": ("{token}", "Number of input and output tokens used."),
    "gen_ai.client.operation.duration": ("s", "GenAI operation duration."),
}


class Receiver:
    """The receiver of spans and metrics. Raises UsageError if the variable of a header is not set."""

    def __init__(self, settings: Telemetry, home: str, environ: Mapping[str, str] = os.environ) -> None:
        headers = {name: _value_of(name, variable, environ) for name, variable in settings.headers_env.items()}
        told = {"user-agent": f"orch/{__version__}", "content-encoding": "gzip"}
        self._client = httpx2.Client(
            headers={**told, **headers, "content-type": "application/x-protobuf"}, timeout=TIMEOUT_SECONDS
        )
        self._url = settings.endpoint
        about: dict[str, Value] = {
            "service.name": "orch", "service.version": __version__, "service.instance.id": home,
        }  # fmt: skip
        self._resource = Resource(attributes=_attributes(about))
        self._scope = InstrumentationScope(name="orch", version=__version__)

    def close(self) -> None:
        self._client.close()

    def send_spans(self, spans: Sequence[TraceSpan]) -> int:
        """Send spans. Return the number of accepted spans; the receiver refused the rest for good. Raises
        BackendError.
        """
        scoped = ScopeSpans(scope=self._scope, spans=[_span(span) for span in spans])
        resourced = ResourceSpans(resource=self._resource, scope_spans=[scoped])
        status, body = self._post("traces", ExportTraceServiceRequest(resource_spans=[resourced]), REFUSED)
        if status == TOO_LARGE and len(spans) > 1:
            half = len(spans) // 2
            return self.send_spans(spans[:half]) + self.send_spans(spans[half:])
        if status in REFUSED:
            if not spans:
                raise BackendError(f"it refuses a request without spans, with status {status}")
            return 0
        answer = _decoded(ExportTraceServiceResponse(), body)
        return max(0, len(spans) - int(answer.partial_success.rejected_spans))

    def send_points(self, points: Iterable[HistogramPoint], since: datetime, now: datetime) -> bool:
        """Send metrics that count from `since` on. Return True if the receiver accepted all of them. Raises
        BackendError.
        """
        by_metric: dict[str, list[HistogramDataPoint]] = {}
        for point in points:
            by_metric.setdefault(point.metric, []).append(_data_point(point, since, now))
        metrics = [_metric(name, found) for name, found in by_metric.items()]
        scoped = ScopeMetrics(scope=self._scope, metrics=metrics)
        resourced = ResourceMetrics(resource=self._resource, scope_metrics=[scoped])
        request = ExportMetricsServiceRequest(resource_metrics=[resourced])
        status, body = self._post("metrics", request, WITHOUT_METRICS)
        answer = _decoded(ExportMetricsServiceResponse(), body)
        return status not in WITHOUT_METRICS and not answer.partial_success.rejected_data_points

    def _post(self, signal: str, message: Any, refused: Container[int]) -> tuple[int, bytes]:
        content = gzip.compress(message.SerializeToString(), compresslevel=1)
        try:
            answer = self._client.post(f"{self._url}/v1/{signal}", content=content)
        except httpx2.HTTPError as error:
            raise BackendError(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
        if answer.status_code in refused:
            return answer.status_code, b""
        if not 200 <= answer.status_code < 300:
            raise BackendError(f"it answers with status {answer.status_code}")
        return answer.status_code, answer.content


def _value_of(header: str, variable: str, environ: Mapping[str, str]) -> str:
    if value := environ.get(variable, "").strip():
        return value
    raise UsageError(
        f"[telemetry]: the environment variable {variable} is not set; it must hold the header {header}",
        hint="set it, then start the daemon again",
    )


def _decoded(message: Any, body: bytes) -> Any:
    """Parse the message in a response. Some receivers send an invalid message, which counts as empty."""
    try:
        message.ParseFromString(body)
    except DecodeError:
        return type(message)()
    return message


def _span(span: TraceSpan) -> Span:
    kind = Span.SPAN_KIND_CLIENT if span.is_client else Span.SPAN_KIND_INTERNAL
    attributes = dict(span.attributes)
    status = Status()
    if span.error is not None:
        attributes["error.type"] = span.error
        status = Status(code=Status.STATUS_CODE_ERROR, message=span.error)
    return Span(
        trace_id=span.trace,
        span_id=span.id,
        parent_span_id=span.parent or b"",
        name=_text(span.name),
        kind=kind,
        start_time_unix_nano=_nanoseconds(span.begin),
        end_time_unix_nano=_nanoseconds(max(span.begin, span.end)),
        attributes=_attributes(attributes),
        status=status,
        events=[
            Span.Event(
                name=_text(event.name),
                time_unix_nano=_nanoseconds(event.at),
                attributes=_attributes(event.attributes),
            )
            for event in span.events
        ],
    )


def _data_point(point: HistogramPoint, since: datetime, now: datetime) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=_attributes(dict(point.attributes)),
        start_time_unix_nano=_nanoseconds(since),
        time_unix_nano=_nanoseconds(now),
        count=sum(point.counts),
        sum=point.total,
        min=point.least,
        max=point.most,
        explicit_bounds=point.bounds,
        bucket_counts=point.counts,
    )


def _metric(name: str, points: list[HistogramDataPoint]) -> Metric:
    unit, about = _ABOUT[name]
    histogram = Histogram(aggregation_temporality=AGGREGATION_TEMPORALITY_CUMULATIVE, data_points=points)
    return Metric(name=name, unit=unit, description=about, histogram=histogram)


def _attributes(values: Mapping[str, Value]) -> list[KeyValue]:
    return [KeyValue(key=_text(name), value=_any(value)) for name, value in [*values.items()][:MOST_ATTRIBUTES]]


def _any(value: Value) -> AnyValue:
    match value:
        case bool():  # before int, because a bool is also an int
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=_text(value))
        case _:
            return AnyValue(array_value=ArrayValue(values=[_any(one) for one in value]))


def _text(text: str) -> str:
    """Return a text that UTF-8 can encode: document names may contain lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def _nanoseconds(at: datetime) -> int:
    gone = at - _EPOCH
    return ((gone.days * 86_400 + gone.seconds) * 1_000_000 + gone.microseconds) * 1000
