"""Scaleway's batches, and the bucket that they read and write.

Sources: scaleway/docs-content 773e5de (pages/generative-apis/how-to/use-batch-processing.mdx) and Scaleway's
reference of the Batches API. An input is named by its plain address; results are in its folder, as NAME_output.jsonl
and NAME_error.jsonl. There is no call to end a batch there, and nothing says that a batch keeps metadata.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote, unquote

from tests.emulator import bedrock_api, openai_batches, openai_files
from tests.emulator.batch import Batch
from tests.emulator.call import Call, Reply, page
from tests.emulator.errors import Json, Refusal, refuse
from tests.emulator.world import World

REGION = "fr-par"
ADDRESS = re.compile(rf"https://([-a-z0-9]+)\.s3\.{REGION}\.scw\.cloud/([^?#]+)")
ENDPOINTS = ("/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/audio/transcriptions")
BUCKET_VERBS = ("upload", "files", "content", "delete_file")


def access_key_of(secret: str) -> str:
    return f"SCW-of-{secret}"


def secret_of(access_key: str) -> str:
    return access_key.removeprefix("SCW-of-")


def key_of(address: object) -> str | None:
    """The key in the address of an object; an account has one bucket here."""
    found = ADDRESS.fullmatch(str(address))
    return None if found is None else unquote(found[2])


def content(world: World, call: Call) -> Reply:
    call.name = call.name.partition("/")[2]
    try:
        return openai_files.content(world, call)
    except Refusal:
        raise refuse(404, "The specified key does not exist.", code="NoSuchKey") from None


def create(world: World, call: Call) -> Reply:
    told = call.json()
    if told.get("endpoint") not in ENDPOINTS:
        raise refuse(400, f"endpoint must be one of {', '.join(ENDPOINTS)}", param="endpoint")
    if told.get("completion_window") != "24h":
        raise refuse(400, "completion_window must be 24h", param="completion_window")
    key = key_of(told.get("input_file_id"))
    if key is None:
        raise refuse(400, "input_file_id must be the URL of an object", param="input_file_id")
    older = world.listed_batches(call.flavour, call.account) if call.has("older_batch") else []
    if older:
        return Reply(_told(world, older[0]))
    return Reply(_told(world, world.made(lambda: _batch(world, call, told, key))))


def _batch(world: World, call: Call, told: Json, key: str) -> Batch:
    found = world.new_batch(call.flavour, call.account, told["endpoint"], "", call.faults)
    found.id = f"{found.id[:8]}-{found.id[8:12]}-4000-8000-{found.id[12:]}"
    found.input_file_id, found.asked = key, told
    found.output_key = key.removesuffix(".jsonl")
    return found


def _told(world: World, batch: Batch) -> Json:
    told = openai_batches.told_of(world, batch)
    address = (batch.asked or {})["input_file_id"]
    root = address.removesuffix(quote(batch.input_file_id or ""))
    for name in ("output_file_id", "error_file_id"):
        told[name] = told[name] and root + quote(told[name])
    return {**told, "input_file_id": address, "metadata": None}


def retrieve(world: World, call: Call) -> Reply:
    return Reply(_told(world, world.batch(call.flavour, call.account, call.name)))


def batches(world: World, call: Call) -> Reply:
    found = world.listed_batches(call.flavour, call.account)
    shown, has_more = page(found, call.query.get("after"), call.limit(1000, 20))
    return Reply(openai_files.listing([_told(world, batch) for batch in shown], has_more))


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    "upload": bedrock_api.upload,
    "files": bedrock_api.files,
    "delete_file": bedrock_api.delete_file,
    "content": content,
    "create": create,
    "retrieve": retrieve,
    "list": batches,
    **{verb: openai_batches.VERBS[verb] for verb in ("models", "model", "chat")},
}
