"""The page for Prometheus, built on request from the server's own counters.

Work on a row never touches the client library: it increments plain integers, which this module reads.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from orchestrator.server.dispatch.stats import BOUNDS, Latencies
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.service import Service

QUANTILES = (0.5, 0.99)


def page(service: Service, accept: str, *, is_known: bool = True) -> tuple[bytes, str]:
    """Return the page and its content type: Prometheus's text, or OpenMetrics if `accept` asks for it.

    Unless the client `is_known`, the page shows a number instead of each upstream's URL.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Server(service, is_known=is_known))
    ProcessCollector(registry=registry)
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


def quantile(latencies: Latencies, share: float) -> float:
    """Return the quantile `share` of the latencies in seconds, interpolated within its bucket.

    Returns NaN without requests. A latency above the last bound counts as that bound.
    """
    wanted, seen, low = share * sum(latencies.counts), 0, 0.0
    for count, high in zip(latencies.counts, BOUNDS, strict=False):
        if count and seen + count >= wanted:
            return min(high, low + (high - low) * (wanted - seen) / count)
        seen, low = seen + count, high
    return BOUNDS[-1] if seen < sum(latencies.counts) else float("nan")


class _Server(Collector):
    def __init__(self, service: Service, *, is_known: bool) -> None:
        self._service = service
        self._is_known = is_known

    def collect(self) -> Iterator[Metric]:
        numbered = enumerate(self._service.upstreams, 1)
        upstreams = [(upstream.shown if self._is_known else str(number), upstream) for number, upstream in numbered]
        yield from _rows(upstreams)
        yield from _interactive(upstreams)
        yield from _upstreams(upstreams)
        yield from self._work()
        yield from self._storage()
        yield from self._connections()
        yield from _engines(self._service.engines() if self._is_known else [])
        yield from _cost(self._service.settings.cost_per_hour, self._service.upstreams)

    def _work(self) -> Iterator[Metric]:
        batches = self._service.batches
        out = sum(upstream.inflight for upstream in self._service.upstreams)
        waiting = max(0, batches.unfinished_rows() - out)
        yield _gauge("orch_rows_waiting", "Rows of batches that wait for an upstream.", waiting)
        yield _gauge("orch_rows_in_flight", "Rows of batches in flight at an upstream.", out)
        running = Counter(run.batch.status.value for run in batches.runs.values())
        yield _gauges("orch_batches", "Unfinished batches.", "status", running.items())
        name, about = "orch_batches_ended", "Batches that ended since the server started."
        family = CounterMetricFamily(name, about, labels=["status"])
        for status, count in batches.ended.items():
            family.add_metric([status.value], count)
        yield family

    def _connections(self) -> Iterator[Metric]:
        connections = self._service.connections
        known = ("known", connections.trusted), ("stranger", connections.strangers)
        yield _gauges("orch_connections", "Open connections, by whether they have shown a key.", "kind", known)
        about = "Connections and bodies that were given up, by reason."
        family = CounterMetricFamily("orch_connections_closed", about, labels=["reason"])
        for reason, count in connections.closed.items():
            family.add_metric([reason.value], count)
        yield family
        about = "Bytes of row, answer and synchronous request bodies in memory."
        yield _gauge("orch_body_bytes", about, self._service.rooms.taken)

    def _storage(self) -> Iterator[Metric]:
        service = self._service
        is_ok = service.state()[0] == "ok"
        yield _gauge("orch_storage_ok", "1 while results and records can be written, else 0.", is_ok)
        backlog = service.backlog_bytes
        yield _gauge("orch_result_backlog_bytes", "Results that wait to become durable.", backlog)
        free = shutil.disk_usage(service.root).free
        yield _gauge("orch_disk_free_bytes", "Free bytes on the disk of the server's folder.", free)
        if service.replicator is not None:
            generation = service.replicator.generation
            about = "The generation in which this server is the active one of its replica."
            yield _gauge("orch_replica_generation", about, generation.number)
            about = "Seconds since the replica was last written."
            yield _gauge("orch_replica_age_seconds", about, generation.age)
        about = "Bytes of files received since the server's start."
        yield CounterMetricFamily("orch_uploaded_bytes", about, value=service.uploaded_bytes)


Named = Sequence[tuple[str, Upstream]]


def _rows(upstreams: Named) -> Iterator[Metric]:
    rows = CounterMetricFamily("orch_rows", "Rows of batches that ended, by result.", labels=["upstream", "result"])
    for url, upstream in upstreams:
        rows.add_metric([url, "succeeded"], upstream.stats.succeeded)
        rows.add_metric([url, "failed"], upstream.stats.failed)
    yield rows
    stats = [(url, upstream.stats) for url, upstream in upstreams]
    yield _counters("orch_row_retries", "Repeated attempts at rows.", ((u, s.retried) for u, s in stats))
    about = "Prompt tokens of rows, including tokens from the prefix cache."
    yield _counters("orch_input_tokens", about, ((u, s.input_tokens) for u, s in stats))
    about = "Prompt tokens of rows that came from the upstream's prefix cache."
    yield _counters("orch_cached_input_tokens", about, ((u, s.cached_tokens) for u, s in stats))
    yield _counters("orch_output_tokens", "Tokens generated for rows.", ((u, s.output_tokens) for u, s in stats))
    latencies = [(url, row.latencies) for url, row in stats]
    yield from _latencies("orch_row_latency", "Time that a row spends at the upstream", latencies)
    about = "Failed rows / rows that ended; absent before the first row."
    shares = [(u, s.failed, s.succeeded + s.failed) for u, s in stats]
    yield _ratios("orch_row_error_ratio", about, shares)
    about = "Cached prompt tokens / prompt tokens; absent before the first."
    yield _ratios("orch_prefix_cache_hit_ratio", about, [(u, s.cached_tokens, s.input_tokens) for u, s in stats])


def _interactive(upstreams: Named) -> Iterator[Metric]:
    stats = [(url, upstream.stats) for url, upstream in upstreams]
    about = "Synchronous requests that were passed through."
    yield _counters("orch_interactive_requests", about, ((u, s.interactive) for u, s in stats))
    about = "Synchronous requests that broke off or ended with 429 or 5xx."
    yield _counters("orch_interactive_failures", about, ((u, s.interactive_failed) for u, s in stats))
    about = "Synchronous requests in flight."
    yield _gauges("orch_interactive_in_flight", about, "upstream", ((u, up.interactive) for u, up in upstreams))
    latencies = [(url, one.interactive_latencies) for url, one in stats]
    yield from _latencies("orch_interactive_latency", "Time until the last byte of a synchronous request", latencies)


def _upstreams(upstreams: Named) -> Iterator[Metric]:
    about = "1 while the upstream is given rows, else 0."
    yield _gauges("orch_upstream_up", about, "upstream", ((u, up.problem is None) for u, up in upstreams))
    about = "Maximum number of rows that the upstream gets at once."
    yield _gauges("orch_concurrency_limit", about, "upstream", ((u, up.limiter.limit) for u, up in upstreams))
    about = "1 for the reason of the concurrency limit's last change."
    why = GaugeMetricFamily("orch_concurrency_limit_reason", about, labels=["upstream", "reason"])
    about = "Changes of the concurrency limit, by reason."
    moves = CounterMetricFamily("orch_concurrency_limit_moves", about, labels=["upstream", "reason"])
    for url, upstream in upstreams:
        why.add_metric([url, upstream.limiter.move.value], 1)
        for move, count in upstream.limiter.moves.items():
            moves.add_metric([url, move.value], count)
    yield why
    yield moves


def _engines(told: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    about = "Seconds that an engine has been in its state."
    states = GaugeMetricFamily("orch_engine_state_seconds", about, labels=["model", "engine", "state"])
    about = "Bytes in use on the GPUs of an engine."
    memory = GaugeMetricFamily("orch_engine_memory_bytes", about, labels=["model", "engine"])
    for one in told:
        labels = [str(one.get("model") or ""), str(one["name"] or "")]
        states.add_metric([*labels, str(one["state"])], one["seconds"])
        if one.get("memory_bytes") is not None:
            memory.add_metric(labels, one["memory_bytes"])
    yield states
    yield memory


def _cost(per_hour: float | None, upstreams: Sequence[Upstream]) -> Iterator[Metric]:
    """Yield the cost so far and per token. Only time with rows in flight counts, at `per_hour` for all upstreams."""
    if per_hour is None or not upstreams:
        return
    cost = per_hour / 3600 * sum(upstream.time_share.busy_seconds for upstream in upstreams) / len(upstreams)
    tokens = sum(upstream.stats.input_tokens + upstream.stats.output_tokens for upstream in upstreams)
    about = "Cost of the upstreams while rows were in flight, in the currency of cost_per_hour."
    yield CounterMetricFamily("orch_cost", about, value=cost)
    if tokens:
        yield _gauge("orch_cost_per_token", "Cost of the upstreams per prompt or generated token.", cost / tokens)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=value)


def _gauges(name: str, about: str, label: str, samples: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=[label])
    for value, number in samples:
        family.add_metric([value], number)
    return family


def _counters(name: str, about: str, samples: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(name, about, labels=["upstream"])
    for url, number in samples:
        family.add_metric([url], number)
    return family


def _ratios(name: str, about: str, samples: Iterable[tuple[str, int, int]]) -> Metric:
    return _gauges(name, about, "upstream", ((url, part / whole) for url, part, whole in samples if whole))


def _latencies(name: str, about: str, samples: Sequence[tuple[str, Latencies]]) -> Iterator[Metric]:
    histogram = HistogramMetricFamily(f"{name}_seconds", f"{about}.", labels=["upstream"])
    quantiles = GaugeMetricFamily(
        f"{name}_quantile_seconds", f"{about}, since the server's start.", labels=["upstream", "quantile"]
    )
    for url, latencies in samples:
        below, buckets = 0, []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), latencies.counts, strict=True):
            below += count
            buckets.append((bound, float(below)))
        histogram.add_metric([url], buckets, sum_value=latencies.total)
        if below:
            for share in QUANTILES:
                quantiles.add_metric([url, str(share)], quantile(latencies, share))
    yield histogram
    yield quantiles
