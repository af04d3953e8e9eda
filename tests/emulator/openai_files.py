"""OpenAI's files, in its own spelling and in Azure's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from math import inf
from pathlib import Path

from tests.emulator.batch import Batch
from tests.emulator.call import Call, Reply, page
from tests.emulator.errors import Json, Refusal, problem_of, refuse
from tests.emulator.results import blocks, openai_lines
from tests.emulator.world import StoredFile, World

MAX_BATCH_BYTES = 209_715_200
DAY = 86_400
PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
SECONDS = {"openai": (3_600, 30 * DAY), "azure": (14 * DAY, 30 * DAY)}
BLOCK_BYTES = 256 * 1024


def upload(world: World, call: Call) -> Reply:
    purpose = call.fields.get("purpose")
    if purpose is None:
        raise missing("purpose")
    if purpose not in PURPOSES:
        raise invalid(purpose, "purpose", PURPOSES)
    if call.path is None or call.filename is None:
        raise missing("file")
    size = call.path.stat().st_size
    if purpose == "batch":
        _check_batch_file(call, call.path, size)
    older = [*world.live_files(call.flavour, call.account)] if call.has("older_file") else []
    if older:
        return Reply(told(world, older[-1]))
    now = world.now()
    lifetime = expires_after(nested(call.fields, "expires_after"), call.flavour)
    if lifetime is None:
        lifetime = 30.0 * DAY if purpose == "batch" and call.flavour == "openai" else inf
    stored = StoredFile(
        world.new_id("file-"),
        call.flavour,
        call.account,
        call.filename,
        purpose,
        now,
        now + lifetime,
        path=call.path,
        size=size,
    )
    late = next((fault.options for fault in call.faults if fault.do == "late_upload"), None)
    if late is not None:
        stored.usable_at, stored.told_at = now + late["seconds"], late["told"]
    world.add_file(stored)
    if call.flavour == "siliconflow":
        # docs.siliconflow.cn, upload files.
        file = told(world, stored)
        names = ("id", "object", "bytes", "filename", "purpose")
        data = {name: file[name] for name in names} | {"createdAt": int(now)}
        return Reply({"code": 20000, "message": "Ok", "status": True, "data": data})
    return Reply(told(world, stored))


def _check_batch_file(call: Call, path: Path, size: int) -> None:
    if size > MAX_BATCH_BYTES:
        raise Refusal(413, problem_of(413))
    with path.open("rb") as file:
        start = file.read(4096).lstrip()
    is_lines = start.startswith(b"{") or not start or call.flavour == "azure"
    if not (call.filename or "").endswith(".jsonl") or not is_lines:
        raise refuse(400, "Invalid file format for Batch API. Must be .jsonl")


def nested(fields: Mapping[str, str], name: str) -> Json | None:
    """Of `name[key]` and `name.key`, as clients spell the parts of an object in a form."""
    found: Json = {}
    for key, value in fields.items():
        if key.startswith((f"{name}[", f"{name}.")):
            part = key[len(name) + 1 :].rstrip("]")
            found[part] = int(value) if value.isdecimal() else value
    return found or None


def expires_after(told: Json | None, flavour: str, name: str = "expires_after") -> float | None:
    """Seconds, None where nothing is told. Raises Refusal."""
    if told is None:
        return None
    if told.get("anchor") != "created_at":
        raise invalid(told.get("anchor"), f"{name}.anchor", ("created_at",))
    low, high = SECONDS.get(flavour, SECONDS["openai"])
    seconds = told.get("seconds")
    if not isinstance(seconds, int) or not low <= seconds <= high:
        raise refuse(
            400,
            f"Invalid '{name}.seconds': must be from {low} to {high}.",
            param=f"{name}.seconds",
            code="invalid_value",
        )
    return float(seconds)


def files(world: World, call: Call) -> Reply:
    found = list(world.live_files(call.flavour, call.account))
    if call.query.get("order", "desc") == "desc":
        found.reverse()
    purpose = call.query.get("purpose")
    wanted = [file for file in found if purpose in (None, file.purpose)]
    shown, has_more = page(wanted, call.query.get("after"), call.limit(10_000, 10_000))
    return Reply(listing([told(world, file) for file in shown], has_more))


def listing(data: list[Json], has_more: bool) -> Json:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def file(world: World, call: Call) -> Reply:
    return Reply(told(world, world.file(call.flavour, call.account, call.name)))


def delete_file(world: World, call: Call) -> Reply:
    found = world.file(call.flavour, call.account, call.name)
    world.delete_file(found)
    return Reply({"id": found.id, "object": "file", "deleted": True})


def content(world: World, call: Call) -> Reply:
    found = world.file(call.flavour, call.account, call.name)
    if found.batch is not None:
        kind, files, now = _kind(world, found, found.batch), found.batch.plan.files, world.now()
        if kind in files.lost or now < found.batch.ended_at + files.late:
            raise refuse(404, f"No such File object: {found.id}", param="id")
        if files.grows:
            there = islice(_lines(world, found, found.batch), found.batch.shown(found.batch.file_lines(kind), now))
            return Reply(blocks=blocks(there), kind="application/octet-stream")
    return Reply(blocks=_content(world, found), kind="application/octet-stream")


def _kind(world: World, file: StoredFile, batch: Batch) -> str:
    return "output" if file.id == world.result_id(batch, "output") else "error"


def _lines(world: World, file: StoredFile, batch: Batch) -> Iterator[bytes]:
    return openai_lines(batch, _kind(world, file, batch), world.settings)


def _size(world: World, file: StoredFile) -> int | None:
    """As it is told."""
    if file.size is None:
        file.size = sum(map(len, _content(world, file)))
    if file.batch is None:
        return file.size
    files = file.batch.plan.files
    if files.told == "none":
        return None
    if files.told == "part":
        shown = file.batch.shown(file.batch.file_lines(_kind(world, file, file.batch)), world.now())
        return sum(map(len, islice(_lines(world, file, file.batch), shown)))
    return file.size + files.wrong_size


def _content(world: World, file: StoredFile) -> Iterator[bytes]:
    if file.batch is not None:
        yield from blocks(_lines(world, file, file.batch))
    else:
        assert file.path is not None
        with file.path.open("rb") as source:
            while block := source.read(BLOCK_BYTES):
                yield block


def told(world: World, file: StoredFile) -> Json:
    is_late = file.told_at == "status" and world.now() < file.usable_at
    return {
        "id": file.id,
        "object": "file",
        "bytes": _size(world, file),
        "created_at": int(file.created_at + world.settings.clock_offset_s),
        "expires_at": None if file.expires_at == inf else int(file.expires_at),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "pending" if is_late else "processed",
        "status_details": None,
    }


def missing(name: str) -> Refusal:
    return refuse(400, f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")


def invalid(value: object, name: str, supported: tuple[str, ...]) -> Refusal:
    known = ", ".join(f"'{one}'" for one in supported)
    return refuse(400, f"Invalid value: '{value}'. Supported values are: {known}.", param=name, code="invalid_value")
