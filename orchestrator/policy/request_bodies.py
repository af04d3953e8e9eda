"""A task's question as a request body: chat completions, responses or embeddings. Pure.

A question is first built as chat messages. Only this module knows how the other endpoints name them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core.batch_api import CHAT, EMBEDDINGS, RESPONSES
from orchestrator.core.quote_marks import unmarked
from orchestrator.settings.task_spec import Task

Message = Mapping[str, Any]


def url_of(task: Task) -> str:
    """Return the endpoint path of a task's requests."""
    if task.kind == "embedding":
        return EMBEDDINGS
    return RESPONSES if task.endpoint == "responses" else CHAT


def question_of(task: Task) -> str:
    """Return a task's prompt template, followed by the labels of a classification."""
    if not task.labels:
        return task.prompt
    lines = (f"- {label}: {said}" if said else f"- {label}" for label, said in task.labels.items())
    return "\n".join((f"{task.prompt}\n\nAnswer with exactly one of these labels:", *lines))


def fixed_fields(task: Task) -> dict[str, Any]:
    """Return the fields of the body that are the same for every document, except the model.

    The answer bound is the bound that the job file states.
    """
    url = url_of(task)
    if url == EMBEDDINGS:
        # The default `encoding_format` is shorter than a list of numbers; `extra` overrides it.
        size = {} if task.dimensions is None else {"dimensions": task.dimensions}
        return {**size, **task.extra}
    return _responses_fields(task) if url == RESPONSES else _chat_fields(task)


def _chat_fields(task: Task) -> dict[str, Any]:
    body: dict[str, Any] = {"max_tokens": task.max_tokens, **_sampling(task)}
    if task.output_schema is not None:
        schema = {"name": task.id, "schema": unmarked(task.output_schema), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if task.logprobs:
        body["logprobs"] = True
    return body | task.extra


def _responses_fields(task: Task) -> dict[str, Any]:
    # These answers are never fetched by id: the provider need not keep them.
    body: dict[str, Any] = {"max_output_tokens": task.max_tokens, **_sampling(task), "store": False}
    text = {}
    if task.output_schema is not None:
        schema = unmarked(task.output_schema)
        text = {"format": {"type": "json_schema", "name": task.id, "schema": schema, "strict": True}}
    if task.logprobs:
        body["include"] = ["message.output_text.logprobs"]
    body |= task.extra
    text |= task.extra.get("text") or {}
    return body | {"text": text} if text else body


def _sampling(task: Task) -> dict[str, Any]:
    given = {name: getattr(task, name) for name in ("temperature", "top_p", "seed", "stop")}
    return {name: value for name, value in given.items() if value is not None}


def bound_field(url: str, bound: int) -> dict[str, int]:
    """Return the field that limits an answer to `bound` tokens. Empty if the endpoint has no such field."""
    if url == EMBEDDINGS:
        return {}
    return {"max_output_tokens" if url == RESPONSES else "max_tokens": bound}


def asked_fields(url: str, messages: Sequence[Message]) -> dict[str, Any]:
    """Return the fields of the body that hold the question. An embedding gets only the text of the last message."""
    if url == EMBEDDINGS:
        return {"input": messages[-1]["content"]}
    return {"input": input_of(messages)} if url == RESPONSES else {"messages": list(messages)}


def input_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Convert chat messages to the `input` of the Responses API."""
    return [{**message, "content": _parts(message["content"])} for message in messages]


def _parts(content: Any) -> Any:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "image_url":
        return {"type": "input_image", "image_url": part["image_url"]["url"]}
    return {"type": "input_text", "text": part["text"]}


def messages_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of any request body, for display. A plain text becomes a message with the role `input`."""
    asked = body.get("messages", body.get("input", body.get("prompt")))
    told = [] if body.get("instructions") is None else [{"role": "instructions", "content": body["instructions"]}]
    if isinstance(asked, list) and asked and all(isinstance(one, dict) for one in asked):
        return [*told, *asked]
    return told if asked is None else [*told, {"role": "input", "content": asked}]
