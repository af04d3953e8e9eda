"""Dialects of the backends in orch.toml: how a job's rows are written for a backend's model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import assert_never

import msgspec
from msgspec import Struct

from orchestrator.backends.package import package_of, rules_for
from orchestrator.core.batch_api import RESPONSES
from orchestrator.core.model import Job, JobKind
from orchestrator.core.row_codes import NONCE
from orchestrator.policy import coded_lines
from orchestrator.policy.dialect import (
    ANTHROPIC_CHAT,
    Dialect,
    Loss,
    OwnRule,
    Recipient,
    Structured,
    dialect_of,
    provider_at,
)
from orchestrator.policy.dialect.recipient import LOCAL
from orchestrator.policy.request_bodies import fixed_fields, url_of
from orchestrator.settings.backends import (
    Backend,
    DialectRule,
    EnginesBackend,
    HostedBackend,
    LocalBackend,
    RayBackend,
    SyncBackend,
)
from orchestrator.settings.model_lists import rung_of
from orchestrator.settings.stored_spec import tasks_of
from orchestrator.settings.task_spec import Task

Refused = Callable[[str, str, str], Collection[str]]
"""Function that returns the fields a backend refuses. Takes the backend, its name for the model, and the endpoint."""


def nothing_refused(backend: str, model: str, endpoint: str) -> Collection[str]:
    """Return no fields. For callers that do not use learned refusals."""
    return ()


def recipient_of(backend: Backend) -> Recipient:
    """Return the backend's properties that its dialect needs."""
    provider = _provider(backend)
    own = tuple(map(_own, backend.dialect))
    table = () if provider == LOCAL else rules_for(provider)
    return Recipient(provider, _structured(backend.structured), own, table)


def _provider(backend: Backend) -> str:
    match backend:
        case LocalBackend() | EnginesBackend() | RayBackend():
            return LOCAL
        case SyncBackend():
            found = provider_at(backend.base_url, backend.provider)
            return ANTHROPIC_CHAT if found == "anthropic" else found
        case HostedBackend():
            return package_of(backend).recipient(backend)
        case _:
            assert_never(backend)


def _structured(said: str | None) -> Structured | None:
    return None if said is None else Structured(said)


def _own(rule: DialectRule) -> OwnRule:
    given = rule.model_dump(exclude={"structured", "endpoint"})
    endpoint = RESPONSES if rule.endpoint == "responses" else None
    return OwnRule(**given, structured=_structured(rule.structured), endpoint=endpoint)


class LineWriter(Struct, frozen=True):
    """Writer of the lines of one shard, for one model at one recipient.

    Rows of the `coded` tasks get their codes here, because codes are not part of a row's identity.
    """

    dialect: Dialect
    dropping: frozenset[str]
    is_ready: bool
    coded: frozenset[str] = frozenset()
    job_name: str = ""

    @property
    def endpoint(self) -> str:
        return self.dialect.asked_at if self.is_ready else self.dialect.endpoint

    @property
    def model(self) -> str:
        """The recipient's name for the model."""
        return self.dialect.name

    def line(self, task: str, line: bytes) -> bytes:
        """Return a row of this task in the form in which it is sent."""
        drop = task in self.dropping
        if task not in self.coded:
            return self.dialect.line(line, drop=drop, is_ready=self.is_ready)
        line = self.dialect.line(coded_lines.with_property(line), drop=drop, is_ready=self.is_ready)
        return coded_lines.with_code(line, self.job_name)


def line_writer(
    job: Job, recipient: Recipient, model: str, endpoint: str, refused: Collection[str] = ()
) -> LineWriter:
    """Return the writer of a job's rows for one model at a recipient. Values in rows of a batch file are kept."""
    tasks = tasks_of(job)
    dropping = frozenset(task.id for task in tasks if task.unsupported == "drop")
    coded = frozenset(task.id for task in tasks if task.check == NONCE)
    dialect = dialect_of(recipient, model, endpoint, refused)
    return LineWriter(dialect, dropping, job.kind is JobKind.BATCH, coded, job.name)


def losses(recipient: Recipient, model: str, task: Task, refused: Collection[str] = ()) -> tuple[Loss, ...]:
    """Return the task's settings that a model would lose, without losses that the task allows."""
    fields = msgspec.json.encode(fixed_fields(task))
    found = _losses(recipient, model, url_of(task), frozenset(refused), fields)
    return tuple(loss for loss in found if not (task.unsupported == "drop" and loss.may_be_dropped))


@lru_cache(maxsize=1024)
def _losses(
    recipient: Recipient, model: str, endpoint: str, refused: frozenset[str], fields: bytes
) -> tuple[Loss, ...]:
    # Cached: the planner asks repeatedly, and a schema takes some time.
    return dialect_of(recipient, model, endpoint, refused).losses(msgspec.json.decode(fields))


def growth(job: Job, recipient: Recipient, model: str, alias: str) -> int:
    """Return the maximum bytes by which a line grows for a model. `alias` is the job's name for the model."""
    asking = (task for task in tasks_of(job) if rung_of(alias)[0] in task.aliases.values())
    return max((_growth(dialect_of(recipient, model, url_of(task)), task) for task in asking), default=0)


def _growth(dialect: Dialect, task: Task) -> int:
    message = [{"role": "system", "content": ""}, {"role": "user", "content": [{"type": "text", "text": ""}]}]
    before = {"messages": message, **fixed_fields(task)}
    after = dialect.body(before, drop=task.unsupported == "drop")
    codes = coded_lines.MOST_BYTES if task.check == NONCE else 0
    return max(0, len(msgspec.json.encode(after)) - len(msgspec.json.encode(before))) + codes
