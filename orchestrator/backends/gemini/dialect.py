"""Dialect of Gemini: reports fields without a counterpart before orch sends anything."""

from __future__ import annotations

from orchestrator.backends.gemini.requests import KNOWN
from orchestrator.policy.dialect.draft import system_into_question
from orchestrator.policy.dialect.openapi_schemas import ask_gemini
from orchestrator.policy.dialect.rules import By, NotAbove, NotMore, NotTaken, OnlyFields, OnlyValues, TableRule
from orchestrator.policy.dialect.structured import ask_in_prompt

_GEMINI = ("gemini", "vertex")  # the same requests at two addresses
_ANY = ""
_SOURCE = "google-genai 3.6.1, types.py: GenerateContentConfig has no such field"


_PENALTIES = ("presence_penalty", "frequency_penalty")
_PROBABILITIES = ("logprobs", "top_logprobs")
_PROBED = "tetsuo-ai/agenc-core#2393: levels of thinking as they were probed"

GEMINI_RULES = (
    TableRule(_GEMINI, _ANY, OnlyFields(KNOWN), _SOURCE),
    TableRule(_GEMINI, _ANY, OnlyValues("n", (1,)), "Gemini's guide: only some models take several candidates"),
    TableRule(_GEMINI, _ANY, NotAbove("temperature", 2), "Gemini's reference: temperature is from 0 to 2"),
    TableRule(_GEMINI, _ANY, NotMore("stop", 5), "Gemini's reference: up to 5 stop sequences"),
    *(
        TableRule(providers, models, NotTaken(fields), source, "2026-11-30")
        for providers, models, fields, source in (
            (("gemini",), r"gemini-2\.5", _PENALTIES, "PublicAffairs/openai-gemini#63: Penalty is not enabled"),
            (("gemini",), r"gemini-2\.5", _PROBABILITIES, "Vela-Research/think-reason-learn#34; Vertex has them"),
            (_GEMINI, r"gemini-[3-9]", _PENALTIES, "Ikalus1988/MisakaNet#1473: Penalty is not enabled"),
            (_GEMINI, r"gemini-[3-9]", _PROBABILITIES, "GoogleCloudPlatform/generative-ai#2947: Logprobs"),
            (
                _GEMINI,
                r"gemini-(3\.[6-9]|3\.5-flash-lite|[4-9])",
                ("temperature", "top_p", "top_k"),
                "langchain-ai/langchain-google#1897: they are fixed; what is asked for is ignored",
            ),
            (_GEMINI, r"gemini-(1|2\.0)|gemma-3", ("reasoning_effort",), "Gemini's guide to thinking: from 2.5 on"),
        )
    ),
    *(
        TableRule(_GEMINI, models, OnlyValues("reasoning_effort", efforts), source)
        for models, efforts, source in (
            (r"gemini-3(\.1)?-pro|gemini-3\.[7-9]|gemini-[4-9]", ("high", "low", "medium"), _PROBED),
            (r"gemini-3(?!(\.1)?-pro|\.[7-9])", ("high", "minimal", "low", "medium"), _PROBED),
            (r"gemini-2\.5-pro", ("medium", "minimal", "low", "high"), "earendil-works/pi#3460: it always thinks"),
            (
                r"gemini-2\.5(?!-pro)",
                ("none", "minimal", "low", "medium", "high"),
                "Gemini's page on OpenAI compatibility",
            ),
        )
    ),
    TableRule(_GEMINI, r"gemma-3", By(system_into_question), "lobehub/lobehub#7128: no developer instruction"),
    TableRule(
        _GEMINI,
        r"gemma-3",
        By(ask_in_prompt),
        "FirebaseExtended/compass-ai-travel-planning-sample-flutter#40: JSON mode is not enabled",
    ),
    TableRule(_GEMINI, r"gemma-3", NotTaken(("response_format",)), "the same"),
    TableRule(_GEMINI, _ANY, By(ask_gemini), "crmne/ruby_llm#894: batches need a responseSchema", "2026-11-30"),
)
