"""Shapes in which real providers were recorded to answer: changes of a result line whose row has an answer.

They are chat completions' unless their name says otherwise; what a line does not have is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.emulator.errors import Json

Change = Callable[[Json], object]


def _answer(change: Callable[[Json], object]) -> Change:
    def apply(line: Json) -> None:
        response = line.get("response") or {}
        body = response.get("body") if response else (line.get("result") or {}).get("message")
        if isinstance(body, dict) and "error" not in body:
            change(body)

    return apply


def _choice(change: Callable[[Json], object]) -> Change:
    return _answer(lambda body: [change(choice) for choice in body.get("choices") or ()])


def _content(change: Callable[[str], Any]) -> Change:
    def apply(choice: Json) -> None:
        if isinstance(choice["message"].get("content"), str):
            choice["message"]["content"] = change(choice["message"]["content"])

    return _choice(apply)


def _finish(reason: str | None) -> Change:
    return _choice(lambda choice: choice.update(finish_reason=reason))


def _usage(**more: Any) -> Change:
    return _answer(lambda body: body["usage"].update(more))


def _output(change: Callable[[list[Json]], list[Json]]) -> Change:
    def apply(body: Json) -> None:
        if "output" in body:
            body["output"] = change(body["output"])

    return _answer(apply)


def _message(text: str, **more: Any) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "msg_0", "type": "message", "role": "assistant", "status": "completed", "content": [part], **more}


def _in_two(output: list[Json]) -> list[Json]:
    text = output[0]["content"][0]["text"]
    return [_message(text[:3]), _message(text[3:])]


_THOUGHT = {"id": "rs_0", "type": "reasoning", "summary": [{"type": "summary_text", "text": 'Say {"no": 1}.'}]}
_BROKEN = {"code": 502, "message": "Provider disconnected", "metadata": {"error_type": "provider_unavailable"}}
_HOUR = {"ephemeral_1h_input_tokens": 4, "ephemeral_5m_input_tokens": 0}

SHAPES: dict[str, Change] = {
    "content_parts": _content(lambda text: [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}]),
    "content_thinks": _content(
        lambda text: [
            {"type": "thinking", "thinking": [{"type": "text", "text": "so"}]},
            {"type": "text", "text": text},
        ]
    ),
    "finish_null": _finish(None),
    "finish_empty": _finish(""),
    "finish_eos": _finish("eos"),
    "finish_abort": _finish("abort"),
    "finish_error": _finish("error"),
    "finish_resource": _finish("insufficient_system_resource"),
    "choice_error": _choice(lambda choice: choice.update(finish_reason="error", error=_BROKEN)),
    "says_no": _choice(lambda choice: choice["message"].update(content=None, refusal="I cannot help with that.")),
    "flat_cached": _usage(cached_tokens=2, prompt_tokens_details=None),
    "cost_ticks": _usage(cost_in_usd_ticks=1_234_500, num_sources_used=0),
    "audio_tokens": _usage(prompt_tokens_details={"cached_tokens": 0, "audio_tokens": 2, "image_tokens": 1}),
    "response_thinks": _output(lambda output: [_THOUGHT, *output]),
    "response_phases": _output(
        lambda output: [_message("Let me look.", phase="commentary"), {**output[0], "phase": "final_answer"}]
    ),
    "response_in_two": _output(_in_two),
    "hour_cache": _usage(cache_creation=_HOUR, cache_creation_input_tokens=4),
}
