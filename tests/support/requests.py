"""What a request body asks: its prompt, its marker in the log, its scripted faults."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.support.answers import inputs_of, text_of

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
TOKENIZE = "/tokenize"

MARKER_CHARS = 80


class Prompt(NamedTuple):
    """`whole` is what the engine reads, `last` what is echoed, `script` where directives are looked for."""

    whole: str
    last: str
    script: str
    inputs: list[str]


def prompt_of(path: str, body: dict[str, Any]) -> Prompt:
    """ValueError when the body lacks what the route needs."""
    if path == CHAT or (path == TOKENIZE and "messages" in body):
        return _chat_prompt(body.get("messages"))
    inputs = inputs_of(body.get("input" if path == EMBEDDINGS else "prompt"))
    if not inputs:
        raise ValueError("the request has no input")
    whole = "".join(inputs)
    return Prompt(whole, inputs[-1], whole, inputs)


def _chat_prompt(messages: Any) -> Prompt:
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ValueError("messages must be a list of at least one message")
    texts = [text_of(message.get("content")) for message in messages]
    whole = "".join(f"<|{m.get('role')}|>{text}\n" for m, text in zip(messages, texts, strict=True))
    script = ""
    for message, text in zip(reversed(messages), reversed(texts), strict=True):
        if message.get("role") == "user":
            script = text
            break
    return Prompt(whole, texts[-1], script, texts)


def marker_of(body: dict[str, Any], prompt: Prompt) -> str:
    """How a test finds a row in the access log: its `user`, or the beginning of its last text."""
    user = body.get("user")
    return user if isinstance(user, str) and user else prompt.last[:MARKER_CHARS]


def output_limit(body: dict[str, Any]) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        if isinstance(body.get(name), int):
            return int(body[name])
    return 0
