"""Answers in JSON that are not as they should be: batches, lists and files, told otherwise than they are.

Each is a function of the answer and its call. A batch's apply to every batch of a list as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.emulator.errors import Json

NAN = "@@NaN@@"
"""Stands for NaN, which JSON does not know and some providers write all the same."""
HUGE = 2**70
DEEP = 3_000

BATCH_VERBS = ("create", "retrieve", "cancel", "list")
LISTS = ("list", "files")

_BATCH: dict[str, Callable[[Json], object]] = {
    "text_counts": lambda told: _count(told, str),
    "float_counts": lambda told: _count(told, float),
    "null_counts": lambda told: _count(told, lambda _: None),
    "zero_counts": lambda told: _count(told, lambda _: 0),
    "negative_counts": lambda told: _count(told, lambda _: -1),
    "huge_counts": lambda told: _count(told, lambda _: HUGE),
    "nan_counts": lambda told: _count(told, lambda _: NAN),
    "no_counts": lambda told: _other_counts(told, None),
    "counts_as_list": lambda told: _other_counts(told, [1, 2, 3]),
    "loud_status": lambda told: _status(told, lambda word: f" {word.upper()} "),
    "new_status": lambda told: _status(told, lambda _: "awaiting_wizards"),
    "status_object": lambda told: _status(told, lambda word: {"state": word}),
    "no_status": lambda told: told.pop(_status_key(told), None),
    "earlier_status": lambda told: told.update(_before(told)),
    "no_id": lambda told: told.pop(_id_key(told), None),
    "number_id": lambda told: told.update({_id_key(told): 4711}),
    "other_id": lambda told: told.update({_id_key(told): f"{told.get(_id_key(told))}x"}),
    "odd_times": lambda told: _times(told, "the day before yesterday"),
    "huge_times": lambda told: _times(told, 10**30),
    "no_times": lambda told: _times(told, None),
    "no_metadata": lambda told: told.pop(_metadata_key(told), None),
    "odd_metadata": lambda told: told.update({_metadata_key(told): ["orch"]}),
    "errors_as_list": lambda told: _errors(told, lambda found: found),
    "errors_as_texts": lambda told: _errors(told, lambda found: [one["message"] for one in found]),
    "errors_as_text": lambda told: _errors(told, lambda found: found[0]["message"]),
    "errors_as_map": lambda told: _errors(told, lambda found: {one["code"]: one["message"] for one in found}),
    "errors_nested": lambda told: _errors(told, lambda found: {"data": {"errors": found}}),
    "odd_letters": lambda told: told.update(id_note="\ud800\0", endpoint="\ud800\0"),
    "odd_usage": lambda told: told.update(usage="a lot"),
}


def _count(told: Json, change: Callable[[int], object]) -> None:
    counts = told.get("request_counts")
    if isinstance(counts, dict):
        told["request_counts"] = {name: change(_number(value)) for name, value in counts.items()}
    told.update({name: change(_number(told[name])) for name in _flat_counts(told)})
    if isinstance(told.get("state"), dict):
        told["state"] = {name: change(_number(value)) for name, value in told["state"].items()}


def _flat_counts(told: Json) -> list[str]:
    """Mistral's and Cohere's, which stand on the batch itself."""
    return [name for name in told if name.endswith(("_requests", "_records"))]


def _other_counts(told: Json, value: object) -> None:
    """Without counts where the value is None, else with this one in their place."""
    names = ["request_counts", *(["state"] if isinstance(told.get("state"), dict) else [])]
    told.update({name: value for name in names if name in told})
    for name in _flat_counts(told):
        told[name] = value
        if value is None:
            del told[name]
    if value is None:
        for name in names:
            told.pop(name, None)


def _number(value: object) -> int:
    """A count, which another fault may have changed already."""
    return int(value) if isinstance(value, int | float) else 0


def _id_key(told: Json) -> str:
    return "batch_id" if "batch_id" in told else "id"


def _metadata_key(told: Json) -> str:
    """xAI's and Cohere's batches have a name instead."""
    return "name" if "batch_id" in told or "input_dataset_id" in told else "metadata"


def _status_key(told: Json) -> str:
    return "processing_status" if "processing_status" in told else "status"


def _status(told: Json, change: Callable[[str], object]) -> None:
    key = _status_key(told)
    if isinstance(told.get(key), str):
        told[key] = change(told[key])


def _before(told: Json) -> Json:
    """As it was while it ran."""
    names = (
        "output_file_id",
        "error_file_id",
        "results_url",
        "ended_at",
        "output_file",
        "error_file",
        "completed_at",
    )
    if isinstance(told.get("state"), str):
        return {"state": "JOB_STATE_RUNNING"}
    if "state" in told:
        total = _number(told["state"].get("num_requests"))
        state = dict.fromkeys(told["state"], 0) | {"num_requests": total, "num_pending": total}
        return {"state": state, "cancel_time": None, "cancel_by_xai_message": None}
    if "input_dataset_id" in told:
        return {"status": "BATCH_STATUS_IN_PROGRESS", "output_dataset_id": ""}
    if "input_files" in told:
        return {"status": "RUNNING", **{name: None for name in names if name in told}}
    files = {name: None for name in names[:4] if name in told}
    return {_status_key(told): "in_progress", **files}


def _times(told: Json, value: object) -> None:
    told.update({name: value for name in told if name.endswith(("_at", "_time")) and told[name] is not None})


def _errors(told: Json, change: Callable[[list[Json]], object]) -> None:
    errors = told.get("errors")
    if isinstance(errors, dict) and errors.get("data"):
        told["errors"] = change(errors["data"])


_LIST: dict[str, Callable[[Json], Any]] = {
    "no_has_more": lambda told: {"object": "list", "data": told["data"]},
    "endless_list": lambda told: {**told, "has_more": True},
    "reversed_list": lambda told: {**told, "data": told["data"][::-1]},
    "doubled_list": lambda told: {**told, "data": [one for one in told["data"] for _ in range(2)]},
    "empty_list": lambda told: {**told, "data": [], "has_more": False},
    "bare_list": lambda told: told["data"],
    "list_of_items": lambda told: {"items": told["data"], "has_more": told.get("has_more")},
    "null_in_list": lambda told: {**told, "data": [None, *told["data"]]},
}
_UPLOAD: dict[str, Callable[[Json], object]] = {
    "other_file": lambda told: told.update(id="file-of-somebody-else", filename="theirs.jsonl", bytes=7),
    "renamed_file": lambda told: told.update(filename=f"{told['id']}.bin", bytes=told["bytes"] + 1),
    "no_bytes": lambda told: told.pop("bytes", None),
    "nameless_file": lambda told: told.update(filename=None),
}

VERBS_OF: dict[str, tuple[str, ...]] = (
    dict.fromkeys(_BATCH, BATCH_VERBS)
    | dict.fromkeys(_LIST, LISTS)
    | dict.fromkeys(_UPLOAD, ("upload",))
    | {"older_batch": ("create",), "older_file": ("upload",), "unpaged_list": LISTS}
)
"""The calls that each of them may be about. `older_batch`, `older_file` and `unpaged_list` are done there."""


def spoken(name: str, verb: str, body: Any) -> Any:
    """The answer as it is told under this fault."""
    if name in _LIST:
        if isinstance(body, dict) and "batches" in body:
            more = {key: value for key, value in body.items() if key != "batches"}
            changed = _LIST[name]({**more, "data": body["batches"]})
            is_list = isinstance(changed, dict) and "data" in changed
            return {**changed, "batches": changed.pop("data")} if is_list else changed
        return _LIST[name](body) if isinstance(body, dict) and "data" in body else body
    change = _BATCH.get(name) or _UPLOAD.get(name)
    if change is not None:
        for told in _listed(body) if verb in LISTS else [_batch(body)]:
            if isinstance(told, dict):
                change(told)
    return body


def _batch(body: Any) -> Any:
    """Together's create has the batch beside a warning, Cohere's answers have it under its name."""
    return body.get("job", body.get("batch", body)) if isinstance(body, dict) else body


def _listed(body: Any) -> list[Any]:
    """The entries of a list that another fault may have given its shape already."""
    found = body if isinstance(body, list) else body.get("data") or body.get("batches") or body.get("items") or []
    return list(found)
