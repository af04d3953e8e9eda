"""What xAI says of the lines of a batch, and its results by pages.

Sources: xai-sdk 1.21.0 (batch_pb2), a recorded batch, xai-sdk-python#176 and CultivateLabs/raif#525 (which models are
refused, and how).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tests.emulator.batch import Batch
from tests.emulator.errors import Json, rpc_number
from tests.emulator.results import openai_lines
from tests.emulator.settings import Settings
from tests.emulator.validation import Checked, LineError
from tests.emulator.validation import check as check_lines

NOT_BATCHED = re.compile(r"grok-4\.[56]")


def check(path: Path, endpoint: str, models: list[str] | None, *, is_truthful: bool) -> Checked:
    """The rows as they will run; a batch of which one line is bad does not run."""
    found = check_lines(path, "xai", endpoint, models, is_truthful=is_truthful)
    if is_truthful and NOT_BATCHED.match(found.model or ""):
        found.errors.append(LineError("", f"Model {found.model} is not supported for batch processing."))
    return found


def results(batch: Batch, settings: Settings, now: float) -> list[Json]:
    """All results that are there now: each row that ran is one, under the name of its endpoint."""
    files, plan = batch.plan.files, batch.plan
    if not batch.is_final or now < batch.ended_at + max(files.late, plan.late_output_id) or "output" in files.lost:
        return []
    lines = [line for kind in ("output", "error") for line in openai_lines(batch, kind, settings)]
    shown = batch.shown(len(lines), now) if files.grows else len(lines)
    return list(_told(islice(lines, shown)))


def _told(lines: Iterator[bytes]) -> Iterator[Json]:
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a page is one piece of JSON: what is torn is not in it
        response = row["response"] or {}
        body = response.get("body")
        said = json.loads(body) if isinstance(body, str) else body
        failed = said.get("error") if isinstance(said, dict) else None
        if failed:
            result: Json = {
                "error": {"code": rpc_number(int(float(response["status_code"]))), "message": failed["message"]}
            }
        else:
            result = {"response": {"chat_get_completion": body}}
        yield {"batch_request_id": row["custom_id"], "batch_result": result}
