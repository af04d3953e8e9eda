"""How the emulated provider is when nothing is scripted. Times are virtual seconds, drawn evenly between two ends."""

from __future__ import annotations

from typing import Annotated

import msgspec

Range = Annotated[tuple[float, float], msgspec.Meta(description="shortest and longest, in virtual seconds")]


class Settings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Each may be set with `POST /_emulator/settings`; those of batches hold for batches made from then on.

    A limit that is None is not there. `accounts` are the keys that are taken, and their organisations; without it any
    key is, with an organisation of its own. `models` None takes any name; `no_sampling` are those models of Anthropic
    that take no temperature. `truthful`: what the real provider refuses of a model is refused. `snapshot` is put
    behind a model's name in answers, as the providers do with dates. `clock_offset_s` is how far the provider's clock
    is ahead in all that it tells, `tells_owner` whether answers name the organisation. `min_rows` are the fewest of a
    job of Bedrock, which knows a repeated create unless it `forgets_tokens`. `echoes` are the ways in which Vertex AI
    writes a request beside its answer, each row in one of them. Rows of an Anthropic batch look into the cache
    `cache_after_s` after its creation. `requests_per_minute`, `tokens_per_minute`, `latency_ms` are for synchronous
    calls, and in real time: that is what their clients wait in.
    """

    validating_s: Range = (5.0, 30.0)
    turnaround_s: Range = (60.0, 600.0)
    finalizing_s: Range = (5.0, 20.0)
    cancelling_s: Range = (30.0, 180.0)
    models: list[str] | None = None
    no_sampling: list[str] = []
    truthful: bool = True
    snapshot: str = ""
    accounts: dict[str, str] = {}
    tells_owner: bool = True
    clock_offset_s: float = 0.0
    enqueued_tokens: dict[str, int] = {}
    azure_queues: bool = False
    batches_per_hour: int = 2000
    min_rows: int = 100
    cache_after_s: float = 30.0
    forgets_tokens: bool = False
    echoes: tuple[str, ...] = ("sent", "nulls", "snakes", "defaults")
    max_files: int | None = None
    max_bytes: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    latency_ms: float = 0.0
