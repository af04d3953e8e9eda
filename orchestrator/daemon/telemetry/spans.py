"""Jobs, shards, batches and rows as spans, with the attributes of OpenTelemetry's GenAI conventions and our own.

https://github.com/open-telemetry/semantic-conventions-genai (gen-ai-spans), as of 2026-11. Span ids are made from the
ids of home, job, shard and row. A restarted daemon thus continues the same trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from hashlib import sha256

from msgspec import Struct

from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.counts import Counts
from orchestrator.core.events import Event
from orchestrator.core.model import FinishedRow, Job, RequestState, job_state
from orchestrator.core.shards import Shard

Value = str | int | float | bool | tuple[str, ...]

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""The conventions' names of operations, by endpoint. Other endpoints use the last word of their path."""
PROVIDERS = {
    "azure": "azure.ai.openai",
    "aws": "aws.bedrock",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshotai": "moonshot_ai",
    "x-ai": "x_ai",
    "vertex": "gcp.vertex_ai",
}
"""The conventions' names of providers, if they differ from the price table's names or the backends' kinds."""
MOST_EVENTS = 128
"""Maximum number of events on a job's span: the newest are kept. OpenTelemetry's SDKs have the same default."""
_BAD_ENDS = (BatchStatus.FAILED, BatchStatus.EXPIRED)


class SpanEvent(Struct, frozen=True):
    name: str
    at: datetime
    attributes: Mapping[str, Value]


class TraceSpan(Struct, frozen=True):
    """A span. `trace` has 16 bytes; `id` and `parent` have 8 bytes. `error` is the code of its failure, or None.

    `is_client` marks a call to another service.
    """

    trace: bytes
    id: bytes
    parent: bytes | None
    name: str
    begin: datetime
    end: datetime
    attributes: Mapping[str, Value]
    error: str | None = None
    is_client: bool = False
    events: tuple[SpanEvent, ...] = ()


class ServedBy(Struct, frozen=True):
    """The server of a backend: its provider's name in the conventions, and its address if it has a single address."""

    provider: str
    address: str | None = None
    port: int | None = None

    @property
    def attributes(self) -> dict[str, Value]:
        """Attributes of each span that represents a call to this server."""
        found: dict[str, Value] = {"gen_ai.provider.name": self.provider}
        if self.address is not None:
            found["server.address"] = self.address
            if self.port is not None:
                found["server.port"] = self.port
        return found


def trace_id(job: Job) -> bytes:
    """Return a job's trace id. It stays the same if the job changes."""
    return sha256(f"orch trace {job.home} {job.id}".encode()).digest()[:16]


def span_id(*of: object) -> bytes:
    """Return the span id for these values: 8 bytes of their hash."""
    return sha256(" ".join(["orch span", *map(str, of)]).encode()).digest()[:8]


def operation(endpoint: str) -> str:
    """Return the conventions' name of an endpoint's operation."""
    return OPERATIONS.get(endpoint, endpoint.rpartition("/")[2])


def job_span(
    job: Job, ended_at: datetime, counts: Counts, cost: Decimal, tags: Mapping[str, str], events: Sequence[Event],
    *, with_reasons: bool,
) -> TraceSpan:  # fmt: skip
    """Return the root span of a job's trace. If the job ends again, the same span gets a later end."""
    state = job_state(job, counts, submitted=True)
    found: dict[str, Value] = {
        **_of_job(job),
        "orch.job.name": job.name,
        "orch.job.state": str(state),
        "orch.cost": float(cost),
        **{f"orch.rows.{one.value}": int(getattr(counts, one.value)) for one in RequestState if one.is_final},
        **{f"orch.tag.{key}": value for key, value in tags.items()},
    }
    if job.deadline_at is not None:
        found["orch.deadline"] = job.deadline_at.isoformat(timespec="seconds")
        found["orch.deadline.kept"] = ended_at <= job.deadline_at
    if job.budget is not None:
        found["orch.budget"] = float(job.budget)
    told = tuple(_event(one, with_reasons) for one in [*events][-MOST_EVENTS:])
    span = span_id(job.id)
    return TraceSpan(
        trace_id(job), span, None, f"job {job.name}", job.created_at, ended_at, found, job.error_code, events=told
    )


def _event(event: Event, with_reason: bool) -> SpanEvent:
    """Return an event of a job as a span event. Its text may quote a document or an answer; its kind and code do
    not.
    """
    told: dict[str, Value] = {} if event.code is None else {"orch.code": event.code}
    if event.shard_id is not None:
        told["orch.shard.id"] = event.shard_id
    if with_reason:
        told["orch.reason"] = event.reason
    return SpanEvent(f"orch.{event.kind}", event.at, told)


def shard_spans(
    job: Job, shard: Shard, served: ServedBy, cost: Decimal, tokens: tuple[int, int], *, is_cut: bool = False
) -> list[TraceSpan]:
    """Return spans for a shard from planning to collection, and for its batch at the backend.

    `tokens` has the prompt tokens and answer tokens. Tokens and cost have our own attribute names. Under the
    conventions' names, a viewer would add them to the rows' tokens and costs. `is_cut` means that some failed or
    sampled rows have no span, because there are too many.
    """
    end = shard.collected_at or shard.ended_at or shard.created_at
    trace, mine = trace_id(job), span_id(shard.id)
    of_both: dict[str, Value] = {
        **_of_job(job),
        "orch.shard.id": shard.id,
        "orch.backend": shard.backend,
        "orch.model": shard.model,
        "orch.rows": shard.rows,
        "orch.cost": float(cost),
    }
    planned: dict[str, Value] = {**of_both, "orch.reason": shard.reason, "orch.tokens.estimated": shard.tokens}
    if shard.rerouted_at is not None:
        planned["orch.rerouted_for"] = shard.rerouted_for or ""
    whole = TraceSpan(trace, mine, span_id(job.id), f"shard {shard.backend}", shard.created_at, end, planned)
    began = shard.intended_at or shard.submitted_at
    if began is None:
        return [whole]
    at_backend: dict[str, Value] = {
        **of_both,
        **served.attributes,
        "gen_ai.operation.name": "batch",
        "orch.endpoint": shard.endpoint,
        "orch.batch.id": shard.batch_id or "",
        "orch.batch.status": shard.provider_status or "",
        "orch.batch.completed": shard.provider_completed,
        "orch.batch.failed": shard.provider_failed,
        "orch.tokens.input": tokens[0],
        "orch.tokens.output": tokens[1],
        "orch.window_seconds": shard.window_seconds,
    }
    if is_cut:
        at_backend["orch.rows.cut"] = True
    error = shard.refusal_code or (shard.provider_status if shard.provider_status in _BAD_ENDS else None)
    over = shard.ended_at or end
    name = f"batch {shard.backend}"
    return [whole, TraceSpan(trace, batch_id(shard), mine, name, began, over, at_backend, error, is_client=True)]


def batch_id(shard: Shard) -> bytes:
    return span_id(shard.id, "batch")


def row_span(
    job: Job,
    shard: Shard,
    row: FinishedRow,
    served: ServedBy,
    asked: str,
    content: Mapping[str, Value],
    *,
    named: bool,
) -> TraceSpan:
    """Return the span of a row, as a model call of the conventions. `asked` is the backend's name for the model.

    With `named`, the span has the row's document and id, which are names from the user's files. The time of a row's
    answer within its batch is unknown. So a row with a known duration is shown at the end of its batch. Any other row
    lasts as long as its batch.
    """
    began = shard.started_at or shard.submitted_at or shard.created_at
    end = shard.ended_at or row.settled_at or began
    begin = began if row.latency_ms is None else end - timedelta(milliseconds=row.latency_ms)
    usage = row.usage
    found: dict[str, Value] = {
        **served.attributes,
        "gen_ai.operation.name": operation(shard.endpoint),
        "gen_ai.request.model": asked,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        # Not in the conventions: Langfuse and Phoenix read costs from these.
        "gen_ai.usage.cost": float(row.cost),
        "llm.cost.total": float(row.cost),
        **_of_row(job, row, named),
        "orch.backend": shard.backend,
        "orch.batch.id": shard.batch_id or "",
        "orch.cost": float(row.cost),
    }
    if row.answered_by is not None:
        found["gen_ai.response.model"] = row.answered_by
    if row.tier is not None:
        found["orch.tier"] = row.tier
    mine, name = span_id(shard.id, "row", row.seq), f"{operation(shard.endpoint)} {asked}"
    attributes = {**found, **content}
    return TraceSpan(
        trace_id(job), mine, batch_id(shard), name, begin, end, attributes, row.error_code, is_client=True
    )


def unsent_span(job: Job, row: FinishedRow, content: Mapping[str, Value], *, named: bool) -> TraceSpan:
    """Return the span of a row that failed without being sent, such as a row with an unreadable document."""
    at = row.settled_at or job.built_at or job.created_at
    mine = span_id(job.id, "row", row.seq, "unsent")
    attributes = {**_of_row(job, row, named), **content}
    return TraceSpan(trace_id(job), mine, span_id(job.id), "document", at, at, attributes, row.error_code)


def _of_row(job: Job, row: FinishedRow, named: bool) -> dict[str, Value]:
    names: dict[str, Value] = {"orch.row.custom_id": row.custom_id, "orch.document": row.document}
    return {
        **(names if named else {}),
        **_of_job(job),
        "orch.row.number": row.seq,
        "orch.row.state": str(row.state),
        "orch.row.attempt": row.attempt + 1,
        "orch.task": row.task,
        "orch.prompt_version": row.prompt_version,
    }


def _of_job(job: Job) -> dict[str, Value]:
    """Return the attributes that every span has: the job's id, and a session id that all runs of its job file
    share.
    """
    return {"session.id": f"{job.name}-{job.series[:8]}", "orch.job.id": job.id}
