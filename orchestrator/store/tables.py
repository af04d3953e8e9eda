"""The tables. They store facts only: bodies are in files, and counts and states of jobs are derived from rows."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    case,
    exists,
    false,
    func,
    literal_column,
    or_,
    true,
)

from orchestrator.store.columns import Instant, Money, Names, Serial, Words, more_counts

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("home", String(32), nullable=False),
    Column("series", String(64), nullable=False),
    Column("identity", String(64), nullable=False),
    Column("name", String(80), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("source", Text, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("options", JSON, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("deadline_at", Instant),
    Column("budget", Money),
    Column("built_at", Instant),
    Column("cancel_requested_at", Instant),
    Column("cancel_code", String(16)),
    Column("cancel_reason", Words),
    Column("finished_at", Instant),
    Column("output_path", Text),
    Column("error", Words),
    Column("error_code", String(32)),
    Column("ignored", JSON(none_as_null=True)),
    Index(None, "series", "created_at"),
    Index(None, "created_at"),
)

shards = Table(
    "shards",
    metadata,
    Column("id", String(90), primary_key=True),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("backend", String(40), nullable=False),
    Column("endpoint", String(64), nullable=False),
    Column("model", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Words, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False, server_default="0"),
    Column("max_output", BigInteger),
    Column("created_at", Instant, nullable=False),
    Column("intended_at", Instant),
    Column("account", Text),
    Column("window_seconds", BigInteger, nullable=False),
    Column("input_file_id", Text),
    Column("batch_id", Text),
    Column("provider_status", String(32)),
    Column("status_at", Instant),
    Column("started_at", Instant),
    Column("seen_at", Instant),
    Column("sends", Integer, nullable=False, server_default="0"),
    Column("rerouted_at", Instant),
    Column("rerouted_for", Words),
    Column("provider_completed", Integer, nullable=False, default=0),
    Column("provider_failed", Integer, nullable=False, default=0),
    Column("provider_input_tokens", BigInteger, nullable=False, default=0),
    Column("provider_output_tokens", BigInteger, nullable=False, default=0),
    Column("provider_seconds", Float, nullable=False, default=0.0),
    Column("output_file_id", Text),
    Column("error_file_id", Text),
    Column("refusal_code", Words),
    Column("refusal", Words),
    Column("held", Words),
    Column("held_code", String(16)),
    Column("failing", JSON(none_as_null=True)),
    Column("submitted_at", Instant),
    Column("ended_at", Instant),
    Column("collected_at", Instant),
    Column("first_at", Instant),
    Column("took_seconds", Float),
    Column("owed", Integer, nullable=False, server_default="0"),
    Column("cleaned_at", Instant),
    Column("preflight", Text),
    UniqueConstraint("job_id", "number"),
    Index(None, "backend", "state"),
)
IS_UNCLEAN = shards.c.cleaned_at.is_(None)
Index("ix_shards_unclean", shards.c.job_id, sqlite_where=IS_UNCLEAN)

# Progress of jobs at our own backends, recorded about once a minute to learn speeds.
progress = Table(
    "progress",
    metadata,
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("backend", String(40), primary_key=True),
    Column("at", Instant, primary_key=True),
    Column("done", Integer, nullable=False),
    Column("left", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Index(None, "backend", "at"),
)


requests = Table(
    "requests",
    metadata,
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("custom_id", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("task", String(40), nullable=False),
    Column("endpoint", String(64), nullable=False),
    Column("model", Text, nullable=False),
    # The alias with which the row was made, if the row moved to a stronger model.
    Column("first_model", Text),
    Column("fingerprint", String(64), nullable=False),
    Column("prompt_version", String(16), nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("length", Integer, nullable=False),
    Column("cut_from_tokens", Integer),
    Column("inputs", Integer, nullable=False, server_default="1"),
    Column("max_output", Integer),
    Column("trimmed_tokens", Integer, nullable=False, server_default="0"),
    Column("cache_key", String(32)),
    # The `seq` of the job's row whose outcome this row takes. If negative, this row awaits the row -1 - twin_of of
    # the job `carried_from`.
    Column("twin_of", Integer),
    Column("avoid", Names),
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False, default=0),
    Column("shard_id", ForeignKey("shards.id", ondelete="SET NULL")),
    Column("settled_at", Instant),
    Column("result_shard", String(90)),
    Column("result_kind", String(8)),
    Column("result_offset", BigInteger),
    Column("result_length", Integer),
    Column("sent_model", Text),
    Column("answered_by", Text),
    Column("upstream", Text),
    Column("latency_ms", Integer),
    Column("input_tokens", Integer, nullable=False, default=0),
    Column("cached_tokens", Integer, nullable=False, default=0),
    Column("output_tokens", Integer, nullable=False, default=0),
    *more_counts(),
    Column("tier", String(16)),
    # True if the answer was accepted although it ended at max_tokens. False if it was accepted with a mark of the
    # next columns: other text around its JSON (null for older versions), or an unknown finish reason. Null for all
    # other answers, so that one index finds all marked answers.
    Column("cut", Boolean),
    Column("repaired", Boolean),
    Column("odd_end", Boolean),
    # True if a quote of the answer can be neither proven nor refuted.
    Column("unverifiable", Boolean),
    Column("cost", Money, nullable=False, default=0),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("carried_from", String(80)),
    Column("why", String(24)),
    Column("content", String(32)),
    Column("wording", String(12)),
    # `canary` is true for a canary row, and `released_at` is when its failure was released from quarantine. `again`
    # is how often the model was shown its answer's fault. `first_offset` and `first_length` are the byte range of the
    # original request line, if a new line replaced it.
    Column("canary", Boolean),
    Column("released_at", Instant),
    # When a failed row's document and task began to fail for this reason.
    Column("failed_since", Instant),
    Column("again", Integer, nullable=False, server_default="0"),
    Column("first_offset", BigInteger),
    Column("first_length", Integer),
    # A document in parts: the row of the final answer has `parts`, and each row of a part also has its number,
    # `part`.
    Column("part", Integer),
    Column("parts", Integer),
    # The document's pages that are sent as pictures, in the form that results use.
    Column("sent_as", Text),
    # Contents of the row's document that were not read.
    Column("notes", Text),
    # Position of the document's text in the request, and the answer's quotes with their positions in that text.
    Column("text_at", Text),
    Column("quotes", Text),
    UniqueConstraint("job_id", "custom_id"),
    Index(None, "job_id", "state"),
)
# Migrations create the partial indexes on Postgres with the same conditions. Stating them here would import its
# dialect, which doubles the time of a read-only command. Only fresh answers are looked up by custom_id, because each
# night adds a carried row per unchanged document.
IS_FRESH = requests.c.carried_from.is_(None)
Index("ix_requests_answers", requests.c.custom_id, sqlite_where=IS_FRESH)
# Rows that are sent themselves. Other rows with the same body may take their answers.
IS_ORIGINAL = and_(IS_FRESH, requests.c.twin_of.is_(None))
HAS_KEY = and_(requests.c.cache_key.is_not(None), IS_ORIGINAL)
Index("ix_requests_cache", requests.c.cache_key, sqlite_where=HAS_KEY)
IS_TWIN = requests.c.twin_of.is_not(None)
Index("ix_requests_twins", requests.c.job_id, requests.c.twin_of, sqlite_where=IS_TWIN)
# Rows that await the outcome of another job's row.
IS_AWAITING = and_(IS_TWIN, requests.c.twin_of < 0, requests.c.settled_at.is_(None))
# Rows that combine the answers to a document's parts.
IS_REDUCE = and_(requests.c.parts.is_not(None), requests.c.part.is_(None))
Index("ix_requests_reduce", requests.c.job_id, requests.c.seq, sqlite_where=IS_REDUCE)
Index("ix_requests_shard_id", requests.c.shard_id, sqlite_where=requests.c.shard_id.is_not(None))
# A pending row has not been settled. A condition on its state would use the index of states, which covers all rows.
_IS_LEFT = and_(requests.c.settled_at.is_(None), requests.c.shard_id.is_(None), requests.c.twin_of.is_(None))
# A row without a request line cannot be sent yet: its line needs the answers to its document's parts.
IS_WAITING = and_(_IS_LEFT, requests.c.length > 0)
IS_BLOCKED = and_(_IS_LEFT, IS_REDUCE, requests.c.length == 0)
_WAITING = requests.c.job_id, requests.c.endpoint, requests.c.model, requests.c.seq
Index("ix_requests_waiting", *_WAITING, sqlite_where=_IS_LEFT)
# A successful job has few failed rows. The range tells Postgres that this index finds fewer rows than any other.
HAS_FAILED = requests.c.error_code >= ""
Index(
    "ix_requests_failures", requests.c.job_id, requests.c.error_code, sqlite_where=requests.c.error_code.is_not(None)
)

# Most jobs have no cut or marked answer.
Index("ix_requests_cut", requests.c.job_id, requests.c.cut, sqlite_where=requests.c.cut.is_not(None))

# A job has few canary rows.
IS_CANARY = requests.c.canary == true()
Index("ix_requests_canary", requests.c.job_id, requests.c.canary, sqlite_where=requests.c.canary.is_not(None))

FIRST_LINE = {
    "offset": func.coalesce(requests.c.first_offset, requests.c.offset),
    "length": func.coalesce(requests.c.first_length, requests.c.length),
    **{"first_offset": None, "first_length": None, "again": 0},
}
"""Values that restore a row's first request line."""


def keeps_from(backends: tuple[str, ...]) -> ColumnElement[bool]:
    """Return the condition that a row avoids exactly these backends."""
    return requests.c.avoid == backends if backends else requests.c.avoid.is_(None)


ledger = Table(
    "ledger",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("seq", Integer, nullable=False),
    Column("shard_id", String(90), nullable=False),
    Column("at", Instant, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("backend", String(40), nullable=False),
    Column("model", Text, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    *more_counts(),
    Column("tier", String(16)),
    Column("cost", Money, nullable=False),
    Column("price_source", Words, nullable=False),
    Column("estimated", Boolean, nullable=False),
    Column("unpriced", Boolean),
    Column("listed", Money),
    UniqueConstraint("shard_id", "seq", "kind"),
    Index(None, "at"),
)
# A literal, because neither database uses a partial index for a bound value.
IS_LOST = ledger.c.kind == literal_column("'lost'")
Index("ix_ledger_lost", ledger.c.job_id, sqlite_where=IS_LOST)
_BOOKED_BY_LENGTH = exists().where(
    ledger.c.shard_id == requests.c.result_shard,
    ledger.c.seq == requests.c.seq,
    ledger.c.kind == "settled",
    ledger.c.job_id == requests.c.job_id,
    ledger.c.estimated,
    ledger.c.input_tokens > 0,
)
# Only rows without tokens are looked up in the ledger.
_HAS_TOKENS = or_(requests.c.input_tokens > 0, requests.c.output_tokens > 0)
OF_SHARD = (shards.c.backend, shards.c.batch_id, case((_HAS_TOKENS, false()), else_=_BOOKED_BY_LENGTH))
"""More columns for `records.finished`, after `FINISHED`: backend, batch, and whether the cost is a guess."""

events = Table(
    "events",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("shard_id", String(90)),
    Column("at", Instant, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("code", Text),
    Column("reason", Words, nullable=False),
)

documents = Table(
    "documents",
    metadata,
    Column("series", String(64), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("size", BigInteger),
    Column("problem", String(32)),
    Column("first_seen_at", Instant, nullable=False),
    Column("last_seen_at", Instant, nullable=False),
    # With these columns, unchanged files need not be read: the file's stat information, and the result of its last
    # reading. A file with a table has its own entry; each document in the table names that file and its position
    # there.
    Column("stamp", Text),
    Column("content", String(32)),
    Column("file", Text),
    Column("place", Integer),
)
IS_OF_TABLE = documents.c.file.is_not(None)
Index(
    "ix_documents_file",
    documents.c.series,
    documents.c.file,
    documents.c.place,
    sqlite_where=IS_OF_TABLE,
)

tags = Table(
    "tags",
    metadata,
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

# Forecasts and outcomes, which `report forecast` compares. `shard_id` and `task` are "" if not applicable, so that
# the key keeps out a second forecast.
forecasts = Table(
    "forecasts",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("shard_id", String(90), nullable=False, server_default=""),
    Column("task", String(40), nullable=False, server_default=""),
    Column("backend", String(40), nullable=False),
    Column("model", Text, nullable=False),
    Column("made_at", Instant, nullable=False),
    Column("p50", Float, nullable=False),
    Column("p95", Float, nullable=False),
    Column("source", Words, nullable=False),
    Column("actual", Float),
    Column("known_at", Instant),
    Column("censored", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("job_id", "kind", "shard_id", "task"),
    Index(None, "made_at"),
)

# GPUs that engines have held, which cost money, busy or idle.
engine_holds = Table(
    "engine_holds",
    metadata,
    Column("home", String(32), primary_key=True),
    Column("backend", String(40), primary_key=True),
    Column("engine", String(160), primary_key=True),
    Column("began_at", Instant, primary_key=True),
    Column("model", String(80), nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("seen_at", Instant, nullable=False),
    Column("warm_at", Instant),
    Column("is_over", Boolean, nullable=False),
    Column("cost_per_hour", Money, nullable=False),
)

engine_rates = Table(
    "engine_rates",
    metadata,
    Column("home", String(32), primary_key=True),
    Column("backend", String(40), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("options", Text, primary_key=True),
    Column("engine_version", String(40), primary_key=True),
    Column("gpu", Text, primary_key=True),
    Column("prefill", Float, nullable=False),
    Column("decode", Float),
    Column("input_tokens", Float, nullable=False),
    Column("output_tokens", Float, nullable=False),
    Column("best_limit", Integer, nullable=False),
    Column("start_seconds", Float),
    Column("vram_bytes", BigInteger),
    Column("measured_at", Instant, nullable=False),
)

# The daemon that may write for a home, if several machines reach the database.
daemon_fences = Table(
    "engine_fences",
    metadata,
    Column("home", String(32), primary_key=True),
    Column("replica", String(32), nullable=False),
    Column("generation", Integer, nullable=False),
)
