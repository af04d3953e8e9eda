"""Synchronous calls: OpenAI's chat completions, responses and embeddings with their tiers, and messages."""

from __future__ import annotations

import json
import math
import time

import msgspec

from tests.emulator.answers import CHAT, ENDPOINTS, MESSAGES, Asked, Body, answer, decode_body, read
from tests.emulator.anthropic_params import problem_of_params
from tests.emulator.call import Call, Reply
from tests.emulator.errors import Json, Problem, Refusal, problem_of, refuse
from tests.emulator.limits import Limits, duration
from tests.emulator.oddlines import odd_body
from tests.emulator.refusals import refusal_of
from tests.emulator.rowfaults import MARK, PLAIN, Effect, marked
from tests.emulator.world import World


def chat(world: World, call: Call) -> Reply:
    """Answer one request and put it on the bill; what the wire does to the answer is the reply's effect."""
    endpoint = _endpoint(call)
    body = _body(world, call, endpoint)
    asked = read(body, endpoint)
    headers = _admit(world, call, asked)
    effect = _effect(world, call, asked)
    if call.flavour == "anthropic" and effect == PLAIN:
        effect = world.cache.effect(call.account, call.json(), world.now(), writes=True)
    if effect.status >= 400:
        problem = problem_of(effect.status, effect.code)
        raise Refusal(effect.status, problem, headers)
    tier = _tier(call.flavour, body)
    world.pay(call.flavour, tier, asked, effect)
    model = f"{body.model}{world.settings.snapshot}"
    told: Json = answer(asked, endpoint, effect, model=model, tier=tier, at=int(world.now()))
    if effect.odd:
        told = odd_body(told, effect.odd)
    if effect.is_broken:
        whole = msgspec.json.encode(told)
        return Reply(blocks=iter([whole[: len(whole) // 2]]), headers=headers, effect=effect)
    return Reply(json.dumps(told) if effect.is_string else told, headers=headers, effect=effect)


def _endpoint(call: Call) -> str:
    if call.flavour == "anthropic":
        return MESSAGES
    return next((one for one in ENDPOINTS if call.address.endswith(one.removeprefix("/v1"))), CHAT)


def _body(world: World, call: Call, endpoint: str) -> Body:
    told = call.json()
    body = decode_body(call.body)
    if not isinstance(body.model, str):
        raise refuse(400, "you must provide a model parameter")
    name = "messages" if endpoint in (CHAT, MESSAGES) else "input"
    if told.get(name) is None:
        raise refuse(400, f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if body.stream:
        raise refuse(400, "Streaming is not emulated.", param="stream", code="unsupported_value")
    models = world.settings.models
    if models is not None and body.model not in models:
        message = f"The model `{body.model}` does not exist or you do not have access to it."
        raise refuse(404, message, code="model_not_found")
    _check(world, call, endpoint, told)
    return body


def _check(world: World, call: Call, endpoint: str, told: Json) -> None:
    """Raises Refusal for what the real provider refuses."""
    told = {name: value for name, value in told.items() if name != "stream"}
    found = problem_of_params(told, world.settings) if endpoint == MESSAGES else None
    if found is None and world.settings.truthful:
        found = refusal_of(call.flavour, endpoint, told)
        if found is not None:
            world.note(call.flavour, told["model"], endpoint, found.message)
    if found is not None:
        raise found.as_refusal()


def _admit(world: World, call: Call, asked: Asked) -> dict[str, str]:
    """The headers that tell of the limits. Raises Refusal above them."""
    settings = world.settings
    published = {"requests": settings.requests_per_minute, "tokens": settings.tokens_per_minute}
    limits = world.limits.setdefault((call.flavour, call.account, asked.body.model), Limits())
    wanted = {"requests": 1, "tokens": asked.prompt + asked.completion}
    wait = limits.take(published, wanted, time.monotonic())
    headers = limits.headers(call.flavour)
    if wait:
        message = (
            f"Rate limit reached for {asked.body.model} in organization {call.account}. "
            f"Please try again in {duration(wait)}."
        )
        headers |= {"retry-after": str(math.ceil(wait)), "retry-after-ms": str(math.ceil(wait * 1000))}
        raise Refusal(429, Problem(message, "requests", None, "rate_limit_exceeded"), headers)
    return headers


def _effect(world: World, call: Call, asked: Asked) -> Effect:
    own = marked(call.body) if MARK in call.body else ()
    scripted = tuple(fault.row_fault() for fault in call.faults if fault.do == "rows")
    return world.effect((*own, *scripted), asked.digest if own else None)


def _tier(flavour: str, body: Body) -> str:
    if flavour == "anthropic":
        return "standard"
    return body.service_tier if body.service_tier in ("flex", "priority") else "default"
