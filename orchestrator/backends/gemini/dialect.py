"""Dialect of Gemini: fields without a counterpart, named before anything is sent."""

from __future__ import annotations

from orchestrator.backends.gemini.requests import LEFT_OUT, TAKEN
from orchestrator.policy.dialect.rules import NotAbove, NotMore, OnlyFields, OnlyValues, TableRule

_GEMINI = ("gemini", "vertex")  # one request at two addresses
_ANY = ""
_SOURCE = "google-genai 3.6.1, types.py: GenerateContentConfig has no such field"


GEMINI_RULES = (
    TableRule(_GEMINI, _ANY, OnlyFields(TAKEN | LEFT_OUT), _SOURCE),
    TableRule(_GEMINI, _ANY, OnlyValues("n", (1,)), "Gemini's guide: several candidates are for some models alone"),
    TableRule(_GEMINI, _ANY, NotAbove("temperature", 2), "Gemini's reference: temperature is from 0 to 2"),
    TableRule(_GEMINI, _ANY, NotMore("stop", 5), "Gemini's reference: up to 5 stop sequences"),
    TableRule(
        _GEMINI,
        r"gemini-[3-9]",
        OnlyValues("reasoning_effort", ("high", "minimal", "low", "medium")),
        "google-genai 3.6.1: ThinkingLevel",
    ),
    TableRule(
        _GEMINI,
        r"gemini-2\.5",
        OnlyValues("reasoning_effort", ("none", "minimal", "low", "medium", "high")),
        "Gemini's page on OpenAI compatibility",
    ),
)
