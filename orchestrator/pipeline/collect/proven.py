"""Record of request fields that a batch's answers prove: the model takes them, so they need no preflight."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from orchestrator.core import request_lines, wire
from orchestrator.core.shards import Shard
from orchestrator.policy.preflight import fields_of
from orchestrator.settings.home import Home
from orchestrator.store import Store


class _Sent(msgspec.Struct):
    custom_id: str
    url: str = ""


_decode = msgspec.json.Decoder(_Sent).decode


def record(store: Store, home: Home, shard: Shard, model: str, answered: Mapping[str, str], now: datetime) -> None:
    """Record the fields of the answered rows, one per task; their lines are read from the shard's input.

    Without the input nothing is recorded.
    """
    wanted, found = set(answered.values()), dict[str, set[str]]()
    try:
        with home.shard_input(shard.id).open("rb") as source:
            for _, _, line in request_lines.lines(source):
                if not wanted:
                    break
                sent = _decode(line)
                if sent.custom_id in wanted:
                    wanted.remove(sent.custom_id)
                    found.setdefault(sent.url, set()).add(fields_of(line))
    except (OSError, ValueError, *wire.JSON_ERRORS):
        return
    for endpoint, fields in found.items():
        store.proofs.add(shard.backend, endpoint, model, fields, now)
