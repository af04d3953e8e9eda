"""All that the provider holds: files, batches, the bill of synchronous calls; and the time at which it is seen."""

from __future__ import annotations

import hashlib
import heapq
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from zlib import crc32

from tests.emulator import (
    bedrock_lines,
    cohere_lines,
    gemini_lines,
    mistral_lines,
    together_lines,
    vertex_lines,
    xai_lines,
)
from tests.emulator.answers import Asked
from tests.emulator.anthropic_cache import PromptCache
from tests.emulator.batch import Batch, Plan, plan
from tests.emulator.clock import Clock
from tests.emulator.errors import Json, Refusal, problem_of, refuse
from tests.emulator.limits import Limits
from tests.emulator.refusals import Refused
from tests.emulator.rowfaults import Effect, RowFault, Tokens, due, effect_of
from tests.emulator.rows import Effects, Rows, plus
from tests.emulator.script import Fault, Script
from tests.emulator.settings import Settings
from tests.emulator.validation import Checked, LineError, check, first_model

HOUR = 3600.0
PURPOSES = ("batch", "batch-api")
"""Purposes of input files."""
QUEUE_LOOK_SECONDS = 60.0


@dataclass(slots=True)
class StoredFile:
    """An upload, which lies at `path`, or a result file of `batch`, which is written whenever it is read.

    An upload can be used from `usable_at` on; that it cannot yet is told at `create`, `validation` or by `status`.
    """

    id: str
    flavour: str
    account: str
    name: str
    purpose: str
    created_at: float
    expires_at: float
    path: Path | None = None
    batch: Batch | None = None
    size: int | None = None
    is_deleted: bool = False
    usable_at: float = 0.0
    told_at: str = "create"


@dataclass(slots=True)
class Paid:
    """Synchronous calls of one flavour, model and tier."""

    rows: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    asked: Counter[str] = field(default_factory=Counter)


class World:
    """One provider in all its flavours. Nothing is written down: it is never killed, but its clients are."""

    def __init__(self, folder: Path, clock: Clock, seed: int) -> None:
        self.folder = folder
        self.clock = clock
        self.seed = seed
        self.settings = Settings()
        self.script = Script()
        self.files: dict[str, StoredFile] = {}
        self.batches: dict[str, Batch] = {}
        self.begun: dict[str, Json] = {}
        self.datasets: dict[tuple[str, str], Json] = {}
        self.paid: dict[tuple[str, str, str], Paid] = {}
        self.limits: dict[tuple[str, str, str], Limits] = {}
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.refused: Counter[tuple[str, str, str, str]] = Counter()
        self.cache = PromptCache()
        self._effects = Effects()
        self._tries: Counter[bytes] = Counter()
        self._heap: list[tuple[float, int, str]] = []
        self._now = 0.0
        self._numbers = 0

    def anew(self, seed: int) -> World:
        """The same provider before anything has happened. What was uploaded is forgotten."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        return World(self.folder, self.clock, seed)

    def now(self) -> float:
        """The time, with all that is due by then done, in the order in which it was due. It never goes back."""
        self._now = max(self._now, self.clock.time())
        while self._heap and self._heap[0][0] <= self._now:
            at, _, batch_id = heapq.heappop(self._heap)
            batch = self.batches[batch_id]
            if batch.due() != at:
                continue
            if batch.status == "validating" and at < batch.created_at + batch.plan.vanishes:
                self._validate(batch, at)
            else:
                batch.step(at)
            self._settle(batch)
        return self._now

    def _settle(self, batch: Batch) -> None:
        """Put its next change into the line, and its result files into the list as soon as it has ended."""
        if batch.due() < inf:
            heapq.heappush(self._heap, (batch.due(), batch.number, batch.id))
        if batch.is_final and batch.flavour not in ("anthropic", "xai", "openrouter"):
            for kind in ("output", "error"):
                if batch.has_file(kind):
                    self._add_result(batch, kind)

    def new_id(self, prefix: str) -> str:
        self._numbers += 1
        return prefix + hashlib.blake2b(f"{self.seed}:{self._numbers}".encode(), digest_size=12).hexdigest()

    def new_path(self) -> Path:
        """Where an upload may be put."""
        return self.folder / self.new_id("body-")

    # --- files

    def add_file(self, stored: StoredFile) -> None:
        """Raises Refusal where the account may not have one more."""
        held = [file for file in self.live_files(stored.flavour, stored.account) if file.path is not None]
        cap = self.settings.max_files
        if stored.flavour == "azure" and cap is None:
            cap = 500 if stored.expires_at == inf else 10_000
        if cap is not None and len(held) >= cap:
            raise refuse(400, f"The number of files is at its maximum of {cap}.", code="too_many_files")
        room = self.settings.max_bytes
        if room is not None and sum(file.size or 0 for file in held) + (stored.size or 0) > room:
            raise refuse(400, f"The storage quota of {room} bytes is used up.", code="storage_quota_exceeded")
        self.files[stored.id] = stored

    def live_files(self, flavour: str, account: str) -> Iterator[StoredFile]:
        """Oldest first."""
        now = self.now()
        for file in self.files.values():
            is_seen = file.batch is None or now >= file.batch.ended_at + file.batch.plan.late_output_id
            if (file.flavour, file.account) == (flavour, account) and not _is_over(file, now) and is_seen:
                yield file

    def file(self, flavour: str, account: str, file_id: str) -> StoredFile:
        """Raises Refusal."""
        found = self.files.get(file_id)
        if found is None or (found.flavour, found.account) != (flavour, account) or _is_over(found, self.now()):
            raise refuse(404, f"No such File object: {file_id}", param="id")
        return found

    def delete_file(self, file: StoredFile) -> None:
        """What a batch runs on, or has run on, stays: its answers are made from it."""
        file.is_deleted = True
        in_use = any(batch.input_file_id == file.id for batch in self.batches.values())
        if file.path is not None and not in_use:
            file.path.unlink()

    def result_id(self, batch: Batch, kind: str) -> str:
        if batch.flavour == "scaleway":
            return f"{batch.output_key}_{kind}.jsonl"
        if batch.output_key is not None:
            return batch.output_key
        name = hashlib.blake2b(f"{batch.id}:{kind}".encode(), digest_size=12).hexdigest()
        return f"file-{name}"

    def _add_result(self, batch: Batch, kind: str) -> None:
        name = f"{batch.id}_{kind}.jsonl"
        at = batch.ended_at
        file_id = self.result_id(batch, kind)
        expires_at = at + batch.output_expires_s
        facts = (batch.flavour, batch.account, name, "batch_output", at, expires_at)
        for one in (file_id, *self._beside(batch)):
            self.files[one] = StoredFile(one, *facts, batch=batch)

    def _beside(self, batch: Batch) -> Iterator[str]:
        """Further files of a batch: Bedrock sums a job up beside its results."""
        if batch.flavour == "bedrock" and batch.output_key is not None:
            yield f"{batch.output_key.rpartition('/')[0]}/manifest.json.out"

    # --- batches

    def add_batch(self, batch: Batch) -> None:
        """Raises Refusal where the account has made too many in the last hour."""
        now = self.now()
        lately = sum(
            (one.flavour, one.account) == (batch.flavour, batch.account) and one.created_at > now - HOUR
            for one in self.batches.values()
        )
        if lately >= self.settings.batches_per_hour:
            raise Refusal(429, problem_of(429), {"retry-after": "60"})
        self.batches[batch.id] = batch
        self._settle(batch)

    def made(self, make: Callable[[], Batch]) -> Batch:
        """Add the batch that `make` returns, and its twin if it has one. Raises Refusal as `add_batch` does."""
        batch = make()
        for one in [batch, *([make()] if batch.plan.has_twin else [])]:
            one.number = len(self.batches)
            self.add_batch(one)
        return batch

    def new_batch(self, flavour: str, account: str, endpoint: str, prefix: str, faults: tuple[Fault, ...]) -> Batch:
        """A batch with its fate, not yet among the others."""
        number = len(self.batches)
        dice = random.Random(f"{self.seed}:{number}")
        fate: Plan = plan(self.settings, flavour, dice, faults)
        return Batch(self.new_id(prefix), number, flavour, account, endpoint, fate, self.now())

    def batch(self, flavour: str, account: str, batch_id: str) -> Batch:
        """Raises Refusal."""
        now = self.now()
        found = self.batches.get(batch_id)
        if found is None or not _is_seen(found, flavour, account) or found.is_unknown(now):
            raise refuse(404, f"No batch found with id '{batch_id}'.")
        return found

    def listed_batches(self, flavour: str, account: str) -> list[Batch]:
        """Newest first."""
        now = self.now()
        return [
            batch
            for batch in reversed(self.batches.values())
            if _is_seen(batch, flavour, account) and now >= batch.created_at + batch.plan.hidden
            if batch.plan.is_listed or not batch.is_unknown(now)
        ]

    def cancel(self, batch: Batch) -> None:
        batch.cancel(self.now())
        self._settle(batch)

    def model_of(self, file_id: str) -> str | None:
        """The model that a file's first line names, or that its batch has."""
        file = self.files.get(file_id)
        if file is None or file.is_deleted:
            return None
        return file.batch.model if file.batch is not None else first_model(file.path) if file.path else None

    def _validate(self, batch: Batch, at: float) -> None:
        file = self.files.get(batch.input_file_id or "")
        if batch.plan.errors:
            return batch.fail(batch.plan.errors, at)
        is_usable = file is not None and (file.told_at != "validation" or at >= file.usable_at)
        if (
            file is None or file.path is None or file.purpose not in PURPOSES or not _may_read(batch, file, at)
            or not is_usable
        ):  # fmt: skip
            message = (
                f"Cannot find file {batch.input_file_id}, or organization {batch.account} does not have access to it."
            )
            return batch.fail([LineError("invalid_request", message, "file_id")], at)
        settings = self.settings
        if batch.flavour == "mistral":
            model = batch.model or ""
            checked = mistral_lines.check(file.path, batch.endpoint, model, is_truthful=settings.truthful)
        elif batch.flavour == "xai":
            checked = xai_lines.check(file.path, batch.endpoint, settings.models, is_truthful=settings.truthful)
        elif batch.flavour == "cohere":
            checked = cohere_lines.check(file.path, batch.model or "", is_truthful=settings.truthful)
        elif batch.flavour == "fireworks":
            checked = mistral_lines.check(file.path, batch.endpoint, batch.model or "", is_truthful=False)
        elif batch.flavour == "gemini":
            checked = gemini_lines.check(file.path, batch.model or "", is_truthful=settings.truthful)
        elif batch.flavour == "bedrock":
            model, least = batch.model or "", settings.min_rows
            checked = bedrock_lines.check(file.path, model, least, is_truthful=settings.truthful)
        elif batch.flavour == "vertex":
            checked = vertex_lines.check(file.path, batch.model or "", is_truthful=settings.truthful)
        elif batch.flavour == "together":
            checked = together_lines.check(file.path, batch.endpoint, settings.models)
        else:
            checked = check(file.path, batch.flavour, batch.endpoint, settings.models, is_truthful=settings.truthful)
        if checked.errors:
            return batch.fail(checked.errors, at)
        batch.model = checked.model
        file.is_deleted |= batch.deletes_input  # zai-sdk 0.2.3: `auto_delete_input_file`, by default
        over = self._over_quota(batch, sum(checked.draft.prompts))
        if over is not None and self.settings.azure_queues and batch.flavour == "azure":
            batch.next_try = at + QUEUE_LOOK_SECONDS
            return None
        if over is not None:
            return batch.fail([over], at)
        for one in checked.refused.values():
            self.note(batch.flavour, batch.model or "", batch.endpoint, one.message)
        refused = {index: refused_effect(one) for index, one in checked.refused.items()}
        return batch.start(self.rows(batch, file.path, checked, refused), at)

    def note(self, flavour: str, model: str, endpoint: str, message: str) -> None:
        """Count a request that the provider refuses because of what it asks."""
        self.refused[flavour, model, endpoint, message] += 1

    def _over_quota(self, batch: Batch, tokens: int) -> LineError | None:
        limits = self.settings.enqueued_tokens
        limit = limits.get(batch.model or "", limits.get("*"))
        if batch.plan.token_limit is not None:
            limit = batch.plan.token_limit
        elif limit is None or self.enqueued(batch) + tokens <= limit:
            return None
        message = (
            f"Enqueued token limit reached for {batch.model} in organization {batch.account}. "
            f"Limit: {limit:,} enqueued tokens. Please try again once some in_progress batches have been completed."
        )
        return LineError("token_limit_exceeded", message)

    def enqueued(self, like: Batch) -> int:
        """The tokens of the batches that run with the same account and model."""
        return sum(
            batch.rows.prompt_tokens
            for batch in self.batches.values()
            if batch.rows is not None
            and batch.is_enqueued
            and (batch.flavour, batch.account, batch.model) == (like.flavour, like.account, like.model)
        )

    def rows(self, batch: Batch, path: Path, checked: Checked, refused: dict[int, Effect] | None = None) -> Rows:
        """The rows with their effects: those of their own marks, of the script, and of what is `refused` anyway."""
        faults = dict(checked.marks)
        for fault in batch.plan.rows:
            for index in _chosen(fault, batch.number, len(checked.draft.starts)):
                faults[index] = (*faults.get(index, ()), fault.row_fault())
        codes = bytearray(len(checked.draft.starts))
        for index, wanted in faults.items():
            codes[index] = self._effects.code(self.effect(wanted, checked.digests.get(index)))
        for index, effect in (refused or {}).items():
            codes[index] = self._effects.code(effect)
        salt = int.from_bytes(hashlib.blake2b(f"{self.seed}:{batch.number}".encode(), digest_size=8).digest(), "big")
        return Rows(path, checked.draft, codes, self._effects, salt)

    def effect(self, faults: tuple[RowFault, ...], digest: bytes | None) -> Effect:
        """What a row's faults do at this try, which is counted where a `digest` says whose it is."""
        attempt = 1
        if digest is not None:
            self._tries[digest] += 1
            attempt = self._tries[digest]
        return effect_of(due(faults, attempt))

    # --- synchronous calls

    def pay(self, flavour: str, tier: str, asked: Asked, effect: Effect) -> None:
        """Put an answered call on the bill, if its effect says so."""
        if effect.is_billed:
            paid = self.paid.setdefault((flavour, asked.body.model, tier), Paid())
            paid.rows += 1
            paid.tokens = plus(paid.tokens, effect.tokens(asked.prompt, asked.completion, asked.most))
            paid.asked[asked.digest.hex()] += 1


def refused_effect(told: Refused) -> Effect:
    """What becomes of a row whose request the provider does not take."""
    return Effect(status=told.status, problem=told.problem, place="error", is_billed=False)


def _chosen(fault: Fault, salt: int, count: int) -> Iterator[int]:
    lines, share = fault.options["lines"], fault.options["share"]
    if lines:
        yield from (line - 1 for line in lines if line <= count)
        return
    for index in range(count):
        if crc32(f"{salt}:{fault.do}:{fault.options['row']}:{index}".encode()) < share * 2**32:
            yield index


def _may_read(batch: Batch, file: StoredFile, now: float) -> bool:
    return (file.flavour, file.account) == (batch.flavour, batch.account) and not _is_over(file, now)


def _is_over(file: StoredFile, now: float) -> bool:
    return file.is_deleted or now >= file.expires_at


def _is_seen(batch: Batch, flavour: str, account: str) -> bool:
    is_ours = (batch.flavour, batch.account) == (flavour, account)
    return is_ours and not batch.is_deleted and batch.status != "gone"
