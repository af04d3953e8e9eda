"""Paid answers that are gone because a backup from before their collection was restored.

orch reports the cost, and pays for the rows again only with a person's consent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_DOWN
from http import HTTPStatus

from msgspec import Struct, structs
from msgspec.structs import replace

from orchestrator.backends import RemoteBatch
from orchestrator.core.counts import number_of
from orchestrator.core.errors import AccountError, BackendRefused, RefusedError
from orchestrator.core.model import PICO, REPAY, Job, Price, Usage
from orchestrator.core.shards import Shard, ShardId
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.policy import results
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.lost_rows import LOST, REPAID

KINDS = ("output", "error")
GONE = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
CLOCK_SLACK = timedelta(minutes=5)
LATEST_FILES = timedelta(hours=1)
"""Time after a batch's end in which missing files may still arrive."""
GONE_WORDS = "their answers are gone"
UNREAD = "their requests cannot be read there, so it is not known if they are this job's"


def are_gone(handle: BackendHandle, files: Iterable[str | None]) -> bool:
    """True if a batch names files and its backend has none of them. Raises BackendError if this stays unknown."""
    named = [one for one in files if one is not None]
    for file_id in named:
        try:
            handle.api.size_of(file_id)
        except AccountError:
            raise
        except BackendRefused as refusal:
            if refusal.status not in GONE:
                raise
        else:
            return False
    return bool(named)


def ids_here(home: Home, shard_id: str) -> frozenset[str] | None:
    """Return the custom_ids of a shard's answers in the home, or None if the home has none."""
    found: set[str] = set()
    for kind in KINDS:
        lines = (one.line for one in results.read(home.results(shard_id, kind)))
        found.update(line.custom_id for line in lines if line is not None and line.custom_id)
    return frozenset(found) or None


def bring_here(home: Home, before: str | None, shard_id: str) -> None:
    """Rename the answers of shard `before` to shard `shard_id`, if the ids differ. Raises OSError."""
    if before in (None, shard_id):
        return
    for kind in KINDS:
        path = home.results(str(before), kind)
        if path.exists():
            path.replace(home.results(shard_id, kind))


def forget_here(home: Home, shard_id: str) -> None:
    """Delete answer files that a later state of the store left under a new shard's id. Raises OSError."""
    for kind in KINDS:
        home.results(shard_id, kind).unlink(missing_ok=True)


class LostAnswers(Struct, frozen=True):
    """A batch whose answers are gone.

    `used` has the backend's token counts, and `shard` the shard id that the batch carries. Without `is_gone`, the
    answers may belong to another job.
    """

    batch: str
    shard: str
    rows: int
    made_at: datetime | None
    used: Usage
    is_gone: bool = True

    @classmethod
    def of(cls, batch: RemoteBatch, shard: Shard) -> LostAnswers:
        """Return the lost answers of a batch. If the batch carries no shard id, use the shard's own id."""
        rows = batch.rows if batch.rows is not None else batch.completed + batch.failed
        used = Usage(input_tokens=batch.input_tokens, output_tokens=batch.output_tokens)
        return cls(batch.id, batch.shard or shard.id, rows, batch.created_at, used)

    def repay(
        self, store: Store, job: Job, shard: Shard, handle: BackendHandle, now: datetime, *, sends: bool = True
    ) -> str:
        """Book the cost of the lost answers, so that their rows can be sent again or cancelled. Return a message.

        `shard` has the batch's rows, and the backend's name for its model. `sends` is true if the rows are sent
        again. Raises RefusedError if they are and no person has agreed to pay again.
        """
        price, used = self._price(shard, handle)
        cost = "an unknown sum" if price is None else f"about ${price.cost:.4f}"
        told = _describe(handle, cost, self.rows, f"batch {self.batch}", GONE_WORDS if self.is_gone else UNREAD)
        if sends and not is_agreed(job, self.made_at):
            raise _refused(job, told)
        if price is not None:
            seqs = [row.seq for row in store.rows.of_shard(shard.id)]
            kind, prices, usages = (
                (REPAID, {seqs[0]: price}, {seqs[0]: used}) if sends else (LOST, *_shares(seqs, price, used))
            )
            store.ledger.book(replace(shard, id=ShardId(self.shard)), kind, prices, now, usages)
        return f"{told}; they are {'sent again, as agreed' if sends else 'cancelled'}"

    def _price(self, shard: Shard, handle: BackendHandle) -> tuple[Price | None, Usage]:
        used = self.used
        if not used.input_tokens and not used.output_tokens:
            used = Usage(input_tokens=shard.tokens, output_tokens=shard.max_output or 0)
        price = handle.price.at_most(shard.model, used)
        return (None if price is None else structs.replace(price, estimated=True)), used


def require_agreed(store: Store, job: Job, shard: Shard, model: str, handle: BackendHandle) -> str | None:
    """Return a message about the consent if an unsent shard has rows with lost paid answers, else None.

    These answers belong to a cancelled job, and its user could not be asked for consent when they were lost. `model`
    is the backend's name for the model. Raises RefusedError without consent to pay again.
    """
    lost = store.lost.like(job, shard, model)
    if not lost:
        return None
    batches = sorted({one.batch for one in lost})
    of = f"batch {batches[0]}" if len(batches) == 1 else number_of(len(batches), "batch")
    told = _describe(handle, f"about ${sum(one.cost for one in lost):.4f}", len(lost), of)
    if not all(is_agreed(job, one.made_at) for one in lost):
        raise _refused(job, told)
    store.lost.agree(lost)
    return f"{told}; they are sent again, as agreed"


def _describe(handle: BackendHandle, cost: str, rows: int, of: str, why: str = GONE_WORDS) -> str:
    return f"{handle.name} was paid {cost} for {number_of(rows, 'row')} of {of}, and {why}"


def _refused(job: Job, told: str) -> RefusedError:
    return RefusedError(
        f"{told}: they were sent or collected after the state in this home was saved",
        hint=f"restore a newer backup, or pay for these rows again: orch retry {job.id} --repay --wait",
    )


def _shares(seqs: Sequence[int], price: Price, used: Usage) -> tuple[dict[int, Price], dict[int, Usage]]:
    totals = structs.asdict(used)
    share = (price.cost / len(seqs)).quantize(PICO, ROUND_DOWN)
    each = {name: tokens // len(seqs) for name, tokens in totals.items()}
    others = len(seqs) - 1
    first = {name: tokens - each[name] * others for name, tokens in totals.items()}
    prices = dict.fromkeys(seqs, structs.replace(price, cost=share))
    usages = dict.fromkeys(seqs, Usage(**each))
    prices[seqs[0]] = structs.replace(price, cost=price.cost - share * others)
    return prices, usages | {seqs[0]: Usage(**first)}


def is_agreed(job: Job, made_at: datetime | None) -> bool:
    """True if a person agreed to pay for the job's rows again, after the batch was made."""
    agreed = job.options.get(REPAY)
    return agreed is not None and (made_at is None or made_at <= datetime.fromisoformat(agreed) + CLOCK_SLACK)
