"""Check of answers that an earlier version accepted: texts that say they are no answer no longer count."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from orchestrator.core import answers, wire
from orchestrator.core.model import RequestState
from orchestrator.policy.answer_text import response_json
from orchestrator.settings.home import Home
from orchestrator.store.records import Earlier

_decode_line = msgspec.json.Decoder(wire.ResultLine).decode


def holding(home: Home, found: Mapping[str, Earlier]) -> dict[str, Earlier]:
    """Return the outcomes that still hold. Each result line is read once; carried outcomes are already checked.

    An answer whose file is gone holds: nothing contradicts it.
    """
    return {name: known for name, known in found.items() if _is_read(known) or _holds(home, known)}


def _is_read(known: Earlier) -> bool:
    facts = known.facts
    return (
        known.state is not RequestState.SUCCEEDED
        or facts["repaired"] is not None
        or facts["result_shard"] is None
        or facts["result_kind"] is None
    )


def _holds(home: Home, known: Earlier) -> bool:
    facts = known.facts
    path = home.results(facts["result_shard"], facts["result_kind"])
    with suppress(OSError, *wire.JSON_ERRORS), path.open("rb") as file:
        file.seek(facts["result_offset"])
        response = _decode_line(file.read(facts["result_length"])).response
        if response is not None and not answers.read_answer(response_json(response)).is_answer:
            return False
        facts["repaired"] = False
    return True
