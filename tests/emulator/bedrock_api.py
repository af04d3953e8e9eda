"""Bedrock's jobs, and the bucket that they read and write.

Sources: botocore 1.43 (bedrock/2023-04-20, s3/2006-03-01, sts/2011-06-15), AWS's user guide on batch inference.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

import msgspec

from tests.emulator.aws_wire import REGION
from tests.emulator.batch import Batch
from tests.emulator.bedrock_lines import answer, asked_of, blocks, problem_with, result_lines, service
from tests.emulator.call import Call, Reply
from tests.emulator.errors import Json, Problem, Refusal, problem_of, refuse
from tests.emulator.refusals import refusal_of
from tests.emulator.rowfaults import MARK, marked
from tests.emulator.world import StoredFile, World

if TYPE_CHECKING:
    from botocore.model import Shape

HOUR = 3600.0
MODELS = ("anthropic.claude-sonnet-5-5", "amazon.nova-micro-v1:0")
STATES = {
    "validating": "Validating",
    "in_progress": "InProgress",
    "finalizing": "InProgress",
    "cancelling": "Stopping",
    "completed": "Completed",
    "failed": "Failed",
    "expired": "PartiallyCompleted",
    "cancelled": "Stopped",
}
MANIFEST = "manifest.json.out"
FOREVER = 10.0 * 365 * 24 * HOUR


# --- the bucket


def upload(world: World, call: Call) -> Reply:
    """An object under its key; a second one takes the first one's place."""
    assert call.path is not None
    _check_owner(call)
    size, now = call.path.stat().st_size, world.now()
    name, key = call.name.rpartition("/")[2], _key(call)
    stored = StoredFile(key, call.flavour, call.account, name, "batch", now, now + FOREVER, call.path, size=size)
    world.add_file(stored)
    return Reply(blocks=iter([b""]), headers={"etag": '"0"'}, kind="application/xml")


def _check_owner(call: Call) -> None:
    owner = call.fields.get("owner")
    if owner and owner != call.account:
        raise refuse(403, "Access Denied", code="AccessDenied")


def _key(call: Call) -> str:
    """The key without its bucket: an account has one bucket here."""
    bucket, _, key = call.name.partition("/")
    if bucket == "no-such-bucket":
        raise refuse(404, "The specified bucket does not exist", code="NoSuchBucket")
    return key


def _stored(world: World, call: Call) -> StoredFile:
    try:
        return world.file(call.flavour, call.account, _key(call))
    except Refusal as refusal:
        if refusal.problem.code == "NoSuchBucket":
            raise
        raise refuse(404, "The specified key does not exist.", code="NoSuchKey") from None


def content(world: World, call: Call) -> Reply:
    _check_owner(call)
    found = _stored(world, call)
    if found.path is not None:
        return Reply(blocks=iter([found.path.read_bytes()]), kind="binary/octet-stream")
    batch, now = found.batch, world.now()
    assert batch is not None
    is_lost = "output" in batch.plan.files.lost
    if is_lost or now < batch.ended_at + max(batch.plan.files.late, batch.plan.late_output_id):
        raise refuse(404, "The specified key does not exist.", code="NoSuchKey")
    if found.id.endswith(MANIFEST):
        return Reply(blocks=iter([msgspec.json.encode(_counts(batch, now))]), kind="binary/octet-stream")
    lines = list(result_lines(batch, world.settings))
    return Reply(blocks=blocks(lines[: batch.shown(len(lines), now)]), kind="binary/octet-stream")


def delete_file(world: World, call: Call) -> Reply:
    """The same answer whether it was there or not."""
    _check_owner(call)
    try:
        world.delete_file(_stored(world, call))
    except Refusal as refusal:
        if refusal.status != 404 or refusal.problem.code == "NoSuchBucket":
            raise
    return Reply(status=204, blocks=iter([b""]))


def files(world: World, call: Call) -> Reply:
    """ListObjectsV2, sorted by key."""
    _check_owner(call)
    _key(call)
    prefix, after = call.query.get("prefix", ""), call.query.get("continuation-token", "")
    found = sorted(
        (one for one in world.live_files(call.flavour, call.account) if one.id.startswith(prefix) and one.id > after),
        key=lambda one: one.id,
    )
    most = int(call.query.get("max-keys", "1000"))
    page, more = found[:most], len(found) > most
    token = f"<NextContinuationToken>{escape(page[-1].id)}</NextContinuationToken>" if more and page else ""
    body = "".join(
        f"<Contents><Key>{escape(one.id)}</Key><LastModified>{_time(one.created_at)}</LastModified>"
        f"<ETag>&quot;0&quot;</ETag><Size>{one.size or 0}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for one in page
    )
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>{token}{body}</ListBucketResult>"
    )
    return Reply(blocks=iter([text.encode()]), kind="application/xml")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- jobs


def create(world: World, call: Call) -> Reply:
    told = call.json()
    _check_shape(told)
    _check_model(world, told["modelId"])
    if told["roleArn"].split(":")[4] != call.account:
        raise refuse(403, "Cross-account pass role is not allowed.", code="AccessDeniedException")
    same = [one for one in world.batches.values() if (one.flavour, one.account) == (call.flavour, call.account)]
    token = told.get("clientRequestToken")
    for one in same if token and not world.settings.forgets_tokens else ():
        if (one.asked or {}).get("clientRequestToken") == token:
            return Reply({"jobArn": one.id})
    if any((one.asked or {}).get("jobName") == told["jobName"] for one in same):
        raise refuse(400, "The provided job name is currently in use.", code="ConflictException")
    key = told["inputDataConfig"]["s3InputDataConfig"]["s3Uri"].partition("://")[2].partition("/")[2]
    if told.get("modelInvocationType") != "Converse":
        raise refuse(400, "The emulator runs jobs of Converse alone.", code="ValidationException")
    batch = world.new_batch(call.flavour, call.account, "converse", "", call.faults)
    batch.id = f"arn:aws:bedrock:{REGION}:{call.account}:model-invocation-job/{batch.id[:12]}"
    batch.asked, batch.model, batch.input_file_id = told, told["modelId"], key
    batch.window_s = told.get("timeoutDurationInHours", 24) * HOUR
    batch.metadata = {one["key"]: one["value"] for one in told.get("tags") or ()}
    out = told["outputDataConfig"]["s3OutputDataConfig"]["s3Uri"].partition("://")[2].partition("/")[2].rstrip("/")
    batch.output_key = f"{out}/{batch.id.rpartition('/')[2]}/{key.rpartition('/')[2]}.out"
    world.add_batch(batch)
    return Reply({"jobArn": batch.id})


def _check_shape(told: Json) -> None:
    """What the SDK's data say of a create; real refusals have other words. Raises Refusal."""
    from botocore.validate import ParamValidator

    shape = service("bedrock").shape_for("CreateModelInvocationJobRequest")
    report = ParamValidator().validate(told, shape)
    problems = [report.generate_report()] if report.has_errors() else list(_misfits(told, shape))
    if problems:
        raise refuse(400, f"1 validation error detected: {problems[0]}", code="ValidationException")


def _misfits(told: object, shape: Shape) -> Iterator[str]:
    """Texts and numbers that do not keep to their pattern or range."""
    from botocore.model import StructureShape

    facts = shape.metadata
    if isinstance(shape, StructureShape) and isinstance(told, dict):
        for name, value in told.items():
            yield from _misfits(value, shape.members[name])
    elif isinstance(told, list):
        for one in told:
            yield from _misfits(one, shape.member)
    elif isinstance(told, str):
        if "pattern" in facts and not re.fullmatch(facts["pattern"], told):
            yield f"{shape.name} does not satisfy its pattern: {told}"
        if len(told) > facts.get("max", len(told)):
            yield f"{shape.name} is too long: {told}"
        if shape.enum and told not in shape.enum:
            yield f"{shape.name} is none of {shape.enum}: {told}"
    elif isinstance(told, int) and not facts.get("min", told) <= told <= facts.get("max", told):
        yield f"{shape.name} is out of its range: {told}"


def _check_model(world: World, name: str) -> None:
    if world.settings.models is not None and name not in world.settings.models:
        raise refuse(400, "The provided model identifier is invalid.", code="ValidationException")


def _batch(world: World, call: Call) -> Batch:
    found = call.name if call.name.startswith("arn:") else _arn(call)
    try:
        return world.batch(call.flavour, call.account, found)
    except Refusal:
        raise refuse(404, "The specified job was not found.", code="ResourceNotFoundException") from None


def _arn(call: Call) -> str:
    return f"arn:aws:bedrock:{REGION}:{call.account}:model-invocation-job/{call.name}"


def retrieve(world: World, call: Call) -> Reply:
    return Reply(_told(world, _batch(world, call)))


def batches(world: World, call: Call) -> Reply:
    found = world.listed_batches(call.flavour, call.account)
    if part := call.query.get("nameContains"):
        found = [one for one in found if part in (one.asked or {})["jobName"]]
    if call.query.get("sortOrder") == "Ascending":
        found = found[::-1]
    start, size = int(call.query.get("nextToken") or 0), int(call.query.get("maxResults") or 1000)
    page = [_told(world, one) for one in found[start : start + size]]
    more = {"nextToken": str(start + size)} if start + size < len(found) else {}
    return Reply({"invocationJobSummaries": page} | more)


def cancel(world: World, call: Call) -> Reply:
    batch = _batch(world, call)
    if batch.is_final:
        raise refuse(400, "The job has ended and cannot be stopped.", code="ConflictException")
    if batch.status != "cancelling":
        world.cancel(batch)
    return Reply({})


def _counts(batch: Batch, now: float) -> Json:
    total, completed, failed = batch.counts(now)
    return {
        "totalRecordCount": total,
        "processedRecordCount": completed + failed,
        "successRecordCount": completed,
        "errorRecordCount": failed,
    }


def _told(world: World, batch: Batch) -> Json:
    now, ahead = world.now(), world.settings.clock_offset_s
    asked = {name: value for name, value in (batch.asked or {}).items() if name != "tags"}
    is_over = batch.is_final and not batch.runs_again(now)
    state = STATES[batch.status] if is_over or not batch.is_final else "InProgress"
    if is_over and batch.status == "expired" and not batch.has_run(now):
        state = "Expired"
    told: Json = {
        "jobArn": batch.id,
        **asked,
        "status": state,
        "submitTime": _time(batch.created_at + ahead),
        "lastModifiedTime": _time(now + ahead),
        "jobExpirationTime": _time(batch.created_at + batch.window_s + ahead),
        **_counts(batch, now),
    }
    if is_over:
        told["endTime"] = _time(batch.ended_at + ahead)
        if batch.errors:
            told["message"] = batch.errors[0].message
    return told


# --- models, identity, and a row at once


def models(world: World, call: Call) -> Reply:
    known = MODELS if world.settings.models is None else world.settings.models
    arn = f"arn:aws:bedrock:{REGION}::foundation-model/"
    return Reply({"modelSummaries": [{"modelArn": arn + name, "modelId": name} for name in known]})


def profiles(world: World, call: Call) -> Reply:
    return Reply({"inferenceProfileSummaries": []})


def caller(world: World, call: Call) -> Reply:
    text = (
        '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
        f"<Arn>arn:aws:iam::{call.account}:user/night</Arn><UserId>AIDA</UserId><Account>{call.account}</Account>"
        "</GetCallerIdentityResult></GetCallerIdentityResponse>"
    )
    return Reply(blocks=iter([text.encode()]), kind="text/xml")


def chat(world: World, call: Call) -> Reply:
    _check_model(world, call.name)
    request = call.json()
    if (problem := problem_with(request)) is not None:
        raise refuse(400, problem, code="ValidationException")
    refused = refusal_of("bedrock", "converse", {**request, "model": call.name}) if world.settings.truthful else None
    if refused is not None:
        world.note("bedrock", call.name, "converse", refused.message)
        raise refused.as_refusal()
    asked = asked_of(request, call.name)
    own = marked(call.body) if MARK in call.body else ()
    effect = world.effect(own, asked.digest if own else None)
    if effect.status >= 400:
        raise Refusal(effect.status, problem_of(effect.status, effect.code))
    world.pay(call.flavour, "standard", asked, effect)
    return Reply(answer(asked, effect), effect=effect)


def service_of(verb: str) -> str:
    """The AWS service that a verb belongs to."""
    if verb in ("upload", "content", "delete_file", "files"):
        return "s3"
    return "sts" if verb == "caller" else "bedrock"


def digest_of(call: Call) -> str:
    found = hashlib.sha256(call.body)
    if call.path is not None:
        with call.path.open("rb") as file:
            while block := file.read(1 << 18):
                found.update(block)
    return found.hexdigest()


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    "upload": upload,
    "files": files,
    "content": content,
    "delete_file": delete_file,
    "create": create,
    "retrieve": retrieve,
    "list": batches,
    "cancel": cancel,
    "models": models,
    "profiles": profiles,
    "caller": caller,
    "chat": chat,
}
__all__ = ["VERBS", "Problem", "digest_of", "service_of"]
