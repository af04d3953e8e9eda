"""Notifies a URL of each batch's end, signed as OpenAI signs its webhooks (Standard Webhooks).

An event is recorded in the transaction that records the batch's end, and removed once the receiver answers with a
2xx. So a kill loses no event. A kill between answer and removal sends an event twice. Both have the same id, derived
from the batch's id, so receivers can drop duplicates.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from orchestrator.core.addresses import is_http_url
from orchestrator.core.batch_api import Batch
from orchestrator.core.clock import now as clock_now
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.server.database import ServerDatabase

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

SECRET_PREFIX = "whsec_"
ANSWER_SECONDS = 10.0
LONGEST_DELAY = 600.0
MAX_ATTEMPTS = 440
"""Maximum attempts, over about three days: delays grow from 1 s to LONGEST_DELAY within about ten attempts."""
AT_ONCE = 8
STORAGE_SECONDS = 10.0


class Target(Struct, frozen=True):
    """The URL that receives events, and the key that signs them."""

    url: str
    key: bytes

    @property
    def shown(self) -> str:
        """The URL without its possibly secret parts, for logs and /health."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def target_of(url: str | None, secret: str | None) -> Target | None:
    """Return the target of these settings; None without a URL. Raises UsageError, without the secret in its text."""
    if url is None:
        return None
    if not is_http_url(url):
        raise UsageError("the webhook's URL is not of the form http(s)://host/path")
    if not secret:
        raise UsageError(
            "a webhook needs a secret that its events are signed with",
            hint="set ORCH_WEBHOOK_SECRET, such as whsec_$(openssl rand -base64 32)",
        )
    if not (key := signing_key(secret)):
        raise UsageError(f"what follows {SECRET_PREFIX} in the webhook's secret is not base64")
    return Target(url, key)


def signing_key(secret: str) -> bytes:
    """Return the key of a Standard Webhooks secret; empty if the text after its prefix is not base64."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return b""


def delay_after(attempts: int) -> float | None:
    """Return the seconds to wait after this many failed attempts; None to give up."""
    if attempts >= MAX_ATTEMPTS:
        return None
    return min(LONGEST_DELAY, 2.0 ** min(attempts - 1, 30))


def signed_headers(target: Target, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of one attempt. The signature covers the time, so that an old event cannot be replayed."""
    signed = b"%b.%d.%b" % (event_id.encode(), timestamp, body)
    signature = base64.b64encode(hmac.digest(target.key, signed, hashlib.sha256)).decode()
    return {
        "content-type": "application/json",
        "user-agent": "orch",
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }


class Webhooks:
    """The events of one server: recorded, and sent until the receiver accepts them. Does nothing without a target."""

    def __init__(
        self, database: ServerDatabase, target: Target | None, settled: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Events are sent once `settled` has returned: then the recorded end is final."""
        self._db = database
        self._settled = settled
        self._target = target
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._target is not None:
            self._task = asyncio.create_task(self._run(self._target))

    async def close(self) -> None:
        """Stop. Events that were not accepted are sent after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def record(self, batch: Batch) -> None:
        """Record an event for a batch's end, inside the transaction that records this end."""
        if self._target is None:
            return
        ended_at = getattr(batch, f"{batch.status}_at")
        event_id = f"evt_{batch.id.removeprefix('batch_')}"
        body = msgspec.json.encode(
            {
                "id": event_id,
                "object": "event",
                "type": f"batch.{batch.status}",
                "created_at": ended_at,
                "data": {"id": batch.id},
            }
        )
        self._db.execute(
            "INSERT OR IGNORE INTO deliveries (id, batch_id, body, due_at, attempts) VALUES (?, ?, ?, ?, 0)",
            (event_id, batch.id, body, _seconds()),
        )
        self._wake.set()

    def state(self) -> dict[str, Any] | None:
        """Return the state of deliveries for /health; None without webhooks."""
        if self._target is None:
            return None
        ((waiting,),) = self._db.query("SELECT count(*) FROM deliveries")
        problems = self._db.query("SELECT problem FROM deliveries WHERE problem IS NOT NULL ORDER BY due_at LIMIT 1")
        return {"url": self._target.shown, "waiting": waiting, "problem": problems[0][0] if problems else None}

    async def _run(self, target: Target) -> None:
        import aiohttp

        limits = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(timeout=limits) as session:
            while True:
                self._wake.clear()
                try:
                    pause = await self._send_due(session, target)
                except StorageError as error:
                    log.warning("webhooks wait: %s", error)
                    pause = STORAGE_SECONDS
                except Exception:
                    log.exception("webhooks are paused by an internal error")
                    pause = STORAGE_SECONDS
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)

    async def _send_due(self, session: aiohttp.ClientSession, target: Target) -> float | None:
        """Send the due events. Return the seconds until the next one; None if no event waits."""
        due = self._db.query(
            "SELECT id, body, batch_id, attempts FROM deliveries WHERE due_at <= ? ORDER BY due_at LIMIT ?",
            (_seconds(), AT_ONCE),
        )
        if due and self._settled is not None:
            await self._settled()
        problems = await asyncio.gather(*(_attempt(session, target, event[0], event[1]) for event in due))
        for (event_id, _, batch_id, attempts), problem in zip(due, problems, strict=True):
            self._settle(event_id, batch_id, attempts + 1, problem)
        ((soonest,),) = self._db.query("SELECT min(due_at) FROM deliveries")
        return None if soonest is None else max(0.0, soonest - _seconds())

    def _settle(self, event_id: str, batch_id: str, attempts: int, problem: str | None) -> None:
        delay = None if problem is None else delay_after(attempts)
        if delay is not None:
            log.warning("webhook %s of %s: %s; next attempt in %.0f s", event_id, batch_id, problem, delay)
            self._db.execute(
                "UPDATE deliveries SET attempts = ?, due_at = ?, problem = ? WHERE id = ?",
                (attempts, _seconds() + delay, problem, event_id),
            )
            return
        if problem is not None:
            log.error("webhook %s of %s is given up after %d attempts: %s", event_id, batch_id, attempts, problem)
        self._db.execute("DELETE FROM deliveries WHERE id = ?", (event_id,))


async def _attempt(session: aiohttp.ClientSession, target: Target, event_id: str, body: bytes) -> str | None:
    headers = signed_headers(target, event_id, int(_seconds()), body)
    try:
        # A redirect would take the event to a place that the operator did not choose.
        async with session.post(target.url, data=body, headers=headers, allow_redirects=False) as answer:
            return None if 200 <= answer.status < 300 else f"{target.shown} answered with status {answer.status}"
    except TimeoutError:
        return f"{target.shown} did not answer within {ANSWER_SECONDS:.0f} s"
    except Exception as error:  # noqa: BLE001  (whatever a receiver does concerns only its own event)
        return f"{target.shown} cannot be reached: {type(error).__name__}"


def _seconds() -> float:
    return clock_now().timestamp()
