"""Vertex AI's batch prediction jobs, and the bucket that they read and write.

Sources: google-genai 3.6.1 (batches.py, types.py, _transformers.py), Google's references of BatchPredictionJob and of
Cloud Storage's JSON API; published notes of OpenRouter on what jobs answer.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from tests.emulator.batch import Batch
from tests.emulator.call import Call, Reply
from tests.emulator.errors import Json, Refusal, refuse
from tests.emulator.gemini_api import answered
from tests.emulator.google_wire import REGION, exchange, project_of
from tests.emulator.vertex_lines import blocks, result_lines
from tests.emulator.world import StoredFile, World

HOUR = 3600.0
DAY = 24 * HOUR
MODELS = ("gemini-3.8-flash", "gemini-2.5-pro")
STATES = {
    "validating": "PENDING",
    "in_progress": "RUNNING",
    "finalizing": "RUNNING",
    "cancelling": "CANCELLING",
    "completed": "SUCCEEDED",
    "failed": "FAILED",
    "expired": "PARTIALLY_SUCCEEDED",
    "cancelled": "CANCELLED",
}
FOREVER = 3650 * DAY


def token(world: World, call: Call) -> Reply:
    return Reply(exchange(call.body))


# --- the bucket


def _key(call: Call) -> str:
    """The key of an object without its bucket: a project has one bucket here."""
    bucket, _, key = call.name.partition("/o/")
    if bucket == "no-such-bucket":
        raise refuse(404, "The specified bucket does not exist.", code="NOT_FOUND")
    return key


def upload(world: World, call: Call) -> Reply:
    """An object under its name; a second one takes the first one's place."""
    assert call.path is not None
    _key(call)
    if call.query.get("uploadType") != "media":
        raise refuse(400, "The emulator takes uploads of media alone.", code="INVALID_ARGUMENT")
    key, now, size = call.query["name"], world.now(), call.path.stat().st_size
    name = key.rpartition("/")[2]
    world.add_file(
        StoredFile(key, call.flavour, call.account, name, "batch", now, now + FOREVER, call.path, size=size)
    )
    return Reply(_object(world, world.files[key]))


def _object(world: World, file: StoredFile) -> Json:
    at = _time(file.created_at + world.settings.clock_offset_s)
    return {"kind": "storage#object", "name": file.id, "size": str(file.size or 0), "timeCreated": at}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def _stored(world: World, call: Call) -> StoredFile:
    key = _key(call)
    try:
        return world.file(call.flavour, call.account, key)
    except Refusal:
        raise refuse(404, f"No such object: {call.name}", code="NOT_FOUND") from None


def content(world: World, call: Call) -> Reply:
    found = _stored(world, call)
    if call.query.get("alt") != "media":
        return Reply(_object(world, found))
    if found.path is not None:
        return Reply(blocks=iter([found.path.read_bytes()]), kind="application/jsonl")
    batch, now = found.batch, world.now()
    assert batch is not None
    if "output" in batch.plan.files.lost or now < batch.ended_at + batch.plan.files.late:
        raise refuse(404, f"No such object: {call.name}", code="NOT_FOUND")
    lines = list(result_lines(batch, world.settings))
    return Reply(blocks=blocks(lines[: batch.shown(len(lines), now)]), kind="application/octet-stream")


def delete_file(world: World, call: Call) -> Reply:
    world.delete_file(_stored(world, call))
    return Reply(status=204, blocks=iter([b""]))


def files(world: World, call: Call) -> Reply:
    _key(call)
    prefix = call.query.get("prefix", "")
    found = (one for one in world.live_files(call.flavour, call.account) if one.id.startswith(prefix))
    shown = [_object(world, one) for one in sorted(found, key=lambda one: one.id)]
    return Reply(_page(call, "items", shown, "maxResults"))


def _page(call: Call, name: str, found: list[Json], size: str = "pageSize") -> Json:
    start, most = int(call.query.get("pageToken") or 0), int(call.query.get(size) or 100)
    page = found[start : start + most]
    told: Json = {name: page} if page else {}
    return told | ({"nextPageToken": str(start + most)} if start + most < len(found) else {})


# --- jobs


def _check_parent(call: Call) -> None:
    """Whether the token may use the project."""
    parts = call.name.split("/")
    if parts[1] != project_of(call.account) or parts[3] != REGION:
        words = f"Permission 'aiplatform.batchPredictionJobs' denied on resource '{call.name}'"
        raise refuse(403, words, code="PERMISSION_DENIED")


def create(world: World, call: Call) -> Reply:
    _check_parent(call)
    told = call.json()
    if unknown := sorted(told.keys() - {"displayName", "model", "inputConfig", "outputConfig", "labels"}):
        words = f'Invalid JSON payload received. Unknown name "{unknown[0]}": Cannot find field.'
        raise refuse(400, words, code="INVALID_ARGUMENT")
    if not 1 <= len(told.get("displayName") or "") <= 128:
        raise refuse(400, "display_name must have from 1 to 128 characters.", code="INVALID_ARGUMENT")
    model = _model_name(world, told["model"])
    uris, target = told["inputConfig"]["gcsSource"]["uris"], told["outputConfig"]["gcsDestination"]["outputUriPrefix"]
    if told["inputConfig"]["instancesFormat"] != "jsonl" or told["outputConfig"]["predictionsFormat"] != "jsonl":
        raise refuse(400, "The emulator reads and writes JSONL alone.", code="INVALID_ARGUMENT")
    key = _key_of(uris[0] if isinstance(uris, list) else uris)
    made: list[Batch] = []
    while not made or (len(made) < 2 and made[0].plan.has_twin):
        batch = world.new_batch(call.flavour, call.account, "generateContent", "", call.faults)
        batch.id = str(int(batch.id[:14], 16) + 10**17)
        batch.number = len(world.batches)
        batch.asked, batch.model, batch.input_file_id, batch.window_s = told, model, key, 4 * DAY
        at = _time(batch.created_at)
        batch.output_key = f"{_key_of(target).rstrip('/')}/prediction-model-{at}-{batch.number}/predictions.jsonl"
        world.add_batch(batch)
        made.append(batch)
    return Reply(_told(world, made[0]))


def _key_of(uri: str) -> str:
    return uri.partition("://")[2].partition("/")[2]


def _model_name(world: World, path: str) -> str:
    name = path.removeprefix("publishers/google/models/")
    if "/" in name or (world.settings.models is not None and name not in world.settings.models):
        raise refuse(404, f"The PublisherModel {name} does not exist.", code="NOT_FOUND")
    return name


def _batch(world: World, call: Call) -> Batch:
    _check_parent(call)
    try:
        return world.batch(call.flavour, call.account, call.name.rpartition("/")[2])
    except Refusal:
        raise refuse(404, "The BatchPredictionJob does not exist.", code="NOT_FOUND") from None


def retrieve(world: World, call: Call) -> Reply:
    return Reply(_told(world, _batch(world, call)))


def batches(world: World, call: Call) -> Reply:
    _check_parent(call)
    found = [_told(world, one) for one in world.listed_batches(call.flavour, call.account)]
    return Reply(_page(call, "batchPredictionJobs", found))


def cancel(world: World, call: Call) -> Reply:
    batch = _batch(world, call)
    if batch.is_final:
        raise refuse(400, "The job is in a final state and cannot be cancelled.", code="FAILED_PRECONDITION")
    if batch.status != "cancelling":
        world.cancel(batch)
    return Reply({})


def delete(world: World, call: Call) -> Reply:
    _batch(world, call).is_deleted = True
    return Reply({"done": True})


def _told(world: World, batch: Batch) -> Json:
    now, ahead = world.now(), world.settings.clock_offset_s
    asked = batch.asked or {}
    is_over = batch.is_final and not batch.runs_again(now)
    state = STATES[batch.status] if is_over or not batch.is_final else "RUNNING"
    total, completed, failed = batch.counts(now)
    if is_over and batch.status == "expired" and not batch.has_run(now):
        state = "EXPIRED"
    told: Json = {
        # A project's number stands in names, whatever was asked for.
        "name": f"projects/123456789/locations/{REGION}/batchPredictionJobs/{batch.id}",
        **asked,
        "state": f"JOB_STATE_{state}",
        "createTime": _time(batch.created_at + ahead),
        "updateTime": _time(now + ahead),
        "modelVersionId": "1",
    }
    uris = told["inputConfig"]["gcsSource"]["uris"]
    told["inputConfig"] = {
        "instancesFormat": "jsonl",
        "gcsSource": {"uris": uris if isinstance(uris, list) else [uris]},
    }
    if completed or failed or (is_over and batch.status == "completed"):
        counts = {"successfulCount": completed, "failedCount": failed, "incompleteCount": total - completed - failed}
        told["completionStats"] = {name: str(count) for name, count in counts.items() if count}
    if not is_over:
        return told
    told["endTime"] = _time(batch.ended_at + ahead)
    if batch.errors:
        code = batch.errors[0].code
        told["error"] = {"code": int(code) if code.isdecimal() else 3, "message": batch.errors[0].message}
    elif batch.rows is not None and batch.output_key is not None:
        told["outputInfo"] = {"gcsOutputDirectory": f"gs://{_bucket(asked)}/{batch.output_key.rpartition('/')[0]}"}
    return told


def _bucket(asked: Json) -> str:
    found: str = asked["outputConfig"]["gcsDestination"]["outputUriPrefix"].partition("://")[2].partition("/")[0]
    return found


# --- models, and a row at once


def models(world: World, call: Call) -> Reply:
    known = MODELS if world.settings.models is None else world.settings.models
    shown: list[Json] = [{"name": f"publishers/google/models/{name}", "versionId": "default"} for name in known]
    return Reply(_page(call, "publisherModels", shown))


def model(world: World, call: Call) -> Reply:
    return Reply({"name": f"publishers/google/models/{_model_name(world, call.name)}", "versionId": "default"})


def chat(world: World, call: Call) -> Reply:
    parent, _, path = call.name.partition("/publishers/")
    call.name = f"{parent}/"
    _check_parent(call)
    return answered(world, call, _model_name(world, f"publishers/{path}"))


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    "token": token,
    "upload": upload,
    "files": files,
    "content": content,
    "delete_file": delete_file,
    "create": create,
    "retrieve": retrieve,
    "list": batches,
    "cancel": cancel,
    "delete": delete,
    "models": models,
    "model": model,
    "chat": chat,
}
