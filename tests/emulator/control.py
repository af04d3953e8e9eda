"""What a test asks of the emulator itself, under /_emulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tests.emulator.bill import bill
from tests.emulator.errors import Json, refuse
from tests.emulator.settings import Settings
from tests.emulator.world import World


def control(world: World, method: str, name: str, query: Mapping[str, str], body: bytes) -> Any:
    """Raises Refusal for what cannot be read."""
    try:
        match method, name:
            case "POST", "script":
                world.script.add(msgspec.json.decode(body, type=list[dict[str, Any]]))
            case "DELETE", "script":
                world.script.faults.clear()
            case "POST", "settings":
                world.settings = changed(world.settings, msgspec.json.decode(body, type=dict[str, Any]))
            case "GET", "bill":
                return bill(world, with_rows="rows" in query)
            case "GET", "state":
                return state(world)
            case _:
                raise refuse(404, f"The emulator has no {method} {name}.")
    except (ValueError, msgspec.MsgspecError) as error:
        raise refuse(400, str(error)) from error
    return {"script": [fault.told() for fault in world.script.faults], "settings": world.settings}


def changed(settings: Settings, told: Json) -> Settings:
    return msgspec.convert(msgspec.to_builtins(settings) | told, Settings)


def state(world: World) -> Json:
    """Everything that is there, also what a fault hides: for assertions."""
    now = world.now()
    return {
        "now": now,
        "batches": [
            {
                "id": batch.id,
                "flavour": batch.flavour,
                "account": batch.account,
                "status": batch.status,
                "model": batch.model,
                "metadata": batch.metadata,
                "rows": batch.count,
                "ran": batch.has_run(now),
                "counts": batch.counts(now),
                "times": batch.times,
                "created_at": batch.created_at,
            }
            for batch in world.batches.values()
        ],
        "files": [
            {"id": file.id, "flavour": file.flavour, "account": file.account, "name": file.name, "bytes": file.size}
            | {"purpose": file.purpose, "is_there": not file.is_deleted and now < file.expires_at}
            for file in world.files.values()
            if file.flavour != "openrouter"  # it has no files: there is only what its batches run on
        ],
        "requests": [
            {"flavour": flavour, "verb": verb, "status": status, "count": count}
            for (flavour, verb, status), count in sorted(world.requests.items())
        ],
        "refused": [
            {"flavour": flavour, "model": model, "endpoint": endpoint, "message": message, "count": count}
            for (flavour, model, endpoint, message), count in sorted(world.refused.items())
        ],
        "script": [fault.told() for fault in world.script.faults],
    }
