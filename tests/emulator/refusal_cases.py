"""Requests that real providers refuse, in the words that users and recordings have of them, and such as they take."""

from __future__ import annotations

from typing import Any

CHAT, RESPONSES, EMBEDDINGS, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"
GENERATE, CONVERSE = "generateContent", "converse"

Json = dict[str, Any]

OPEN: Json = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CLOSED: Json = {**OPEN, "additionalProperties": False}
OPTIONAL: Json = {**CLOSED, "properties": {**CLOSED["properties"], "b": {"type": "string"}}}


def as_chat(schema: Json, *, strict: bool = True, name: str = "t") -> Json:
    told = {"name": name, "schema": schema, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": told}}


def as_text(schema: Json) -> Json:
    return {"text": {"format": {"type": "json_schema", "name": "t", "schema": schema, "strict": True}}}


def within(part: Json) -> Json:
    return {**CLOSED, "properties": {"a": part}}


def as_output(schema: Json) -> Json:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def config(**settings: Any) -> Json:
    return {"generationConfig": settings}


def thinking(level: str) -> Json:
    return config(thinkingConfig={"thinkingLevel": level})


def inference(**settings: Any) -> Json:
    return {"inferenceConfig": settings}


HAIKU_4_5, OPUS_5 = "us.anthropic.claude-haiku-4-5-20251001-v1:0", "us.anthropic.claude-opus-5"
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 3000}
TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {**CLOSED, "required": ["a"]}}}]}
EXPLICIT = {"prompt_cache_options": {"mode": "explicit"}}
FORCED = {**TOOLS, "tool_choice": "required"}
UNTHINKING = {"thinking": {"type": "disabled"}}
JSON_OBJECT = {"response_format": {"type": "json_object"}}

REASONERS = (
    "o1 o3 o3-mini o4-mini gpt-5 gpt-5-mini gpt-5-nano gpt-5-nano-2025-08-07 gpt-5.1 gpt-5.4 gpt-5.6-sol gpt-6-sol"
)
REFUSED: list[tuple[str, str, str, Json, str]] = [
    # flavour, endpoint, models, what is asked, what is said
    ("openai", CHAT, REASONERS, {"max_tokens": 9}, "Unsupported parameter: 'max_tokens' is not supported with this"),
    ("azure", CHAT, "o4-mini gpt-5-nano", {"max_tokens": 9}, "Use 'max_completion_tokens' instead."),
    (
        "openai",
        CHAT,
        "gpt-5 gpt-5-mini gpt-5-nano o1 o3-mini gpt-5.5 gpt-5.6",
        {"temperature": 0},
        "'temperature' does not support 0",
    ),
    ("openai", CHAT, "gpt-5.5 gpt-4o o3", EXPLICIT, "'prompt_cache_options' is not supported with this model"),
    ("azure", RESPONSES, "gpt-5.4-mini", EXPLICIT, "'prompt_cache_options' is not supported with this model"),
    ("gemini", GENERATE, "gemini-3.8-flash", {"cachedContent": "c", "tools": [{}]}, "CachedContent can not be used"),
    ("openai", CHAT, "gpt-5 o3", {"top_p": 0.5}, "'top_p' does not support 0.5"),
    ("openai", CHAT, "gpt-5 o3", {"presence_penalty": 1}, "'presence_penalty' is not supported"),
    ("openai", CHAT, "gpt-5 o3", {"logit_bias": {"5": 1}}, "'logit_bias' is not supported"),
    ("openai", CHAT, "gpt-5.4", {"temperature": 0, "reasoning_effort": "low"}, "'temperature' does not support 0"),
    ("openai", RESPONSES, "gpt-5 o3 o4-mini gpt-5.6", {"temperature": 1}, "'temperature' is not supported with this"),
    ("openai", RESPONSES, "gpt-5 o3", {"top_p": 1}, "'top_p' is not supported with this model"),
    (
        "openai",
        CHAT,
        "gpt-5 gpt-5-mini gpt-5.4 o3 o4-mini",
        {"stop": ["x"]},
        "'stop' is not supported with this model",
    ),
    ("openai", CHAT, "o1 o3 o4-mini gpt-5", {"logprobs": True}, "You are not allowed to request logprobs"),
    (
        "openai",
        RESPONSES,
        "gpt-5 o3",
        {"include": ["message.output_text.logprobs"]},
        "logprobs are not supported with",
    ),
    ("openai", RESPONSES, "gpt-4o gpt-5 m", {"max_output_tokens": 5}, "Expected a value >= 16, but got 5 instead."),
    ("openai", CHAT, "gpt-4o m gpt-5", as_chat(OPEN), "'additionalProperties' is required to be supplied and to be"),
    ("azure", CHAT, "our-deployment", as_chat(OPTIONAL), "Missing 'b'."),
    ("openai", RESPONSES, "gpt-4o", as_text(OPEN), "In context=(), 'additionalProperties' is required"),
    ("openai", CHAT, "gpt-4o", as_chat({"type": "array", "items": CLOSED}), "got 'type: \"array\"'"),
    ("openai", CHAT, "gpt-4o", as_chat(within({"type": "string", "minLength": 3})), "'minLength' is not permitted"),
    ("openai", CHAT, "gpt-4o", as_chat(within(OPEN)), "In context=('properties', 'a'), 'additionalProperties'"),
    ("openai", CHAT, "gpt-4o", as_chat(within({"enum": [*range(1001)]})), "at most 1000 enum values"),
    ("openai", CHAT, "gpt-4o", as_chat(CLOSED, name="no blanks"), "string does not match pattern"),
    ("openai", CHAT, "gpt-4o", as_chat(CLOSED, name="n" * 65), "string too long. Expected a string with maximum"),
    (
        "openai",
        CHAT,
        "gpt-4-turbo gpt-4 gpt-3.5-turbo o1-mini",
        as_chat(CLOSED),
        "of type 'json_schema' is not supported",
    ),
    ("openai", CHAT, "gpt-4o", JSON_OBJECT, "'messages' must contain the word 'json'"),
    (
        "openai",
        CHAT,
        "o1-mini o1-preview",
        {"messages": [{"role": "system", "content": "x"}]},
        "does not support 'system'",
    ),
    (
        "openai",
        CHAT,
        "gpt-5-pro o3-pro o1-pro gpt-5-codex gpt-5.2-pro",
        {},
        "This model is only supported in v1/responses",
    ),
    (
        "openai",
        RESPONSES,
        "gpt-4o-search-preview text-embedding-3-small",
        {},
        "cannot be used with the Responses API",
    ),
    ("openai", CHAT, "text-embedding-3-small", {}, "This is not a chat model"),
    (
        "openai",
        CHAT,
        "gpt-4o-search-preview",
        {"temperature": 1},
        "incompatible request argument supplied: temperature",
    ),
    (
        "openai",
        CHAT,
        "gpt-4o-mini-search-preview",
        {"top_p": 0.5, "presence_penalty": 0},
        "Model incompatible request arguments supplied: presence_penalty, top_p",
    ),
    ("openai", EMBEDDINGS, "gpt-4o gpt-5", {}, "You are not allowed to generate embeddings from this model"),
    ("openai", EMBEDDINGS, "text-embedding-ada-002", {"dimensions": 256}, "does not support specifying dimensions"),
    ("openai", EMBEDDINGS, "text-embedding-3-small", {"dimensions": 3072}, "less than or equal to 1536"),
    (
        "openai",
        CHAT,
        "gpt-4o gpt-5",
        {"max_tokens": 9, "max_completion_tokens": 9},
        "at the same time is not supported",
    ),
    ("openai", CHAT, "gpt-5 gpt-5-nano", {"reasoning_effort": "none"}, "'minimal', 'low', 'medium', and 'high'."),
    ("openai", CHAT, "gpt-5.1 o3", {"reasoning_effort": "minimal"}, "'reasoning_effort' does not support 'minimal'"),
    ("openai", CHAT, "gpt-5.1 gpt-5", {"reasoning_effort": "xhigh"}, "does not support 'xhigh'"),
    (
        "openai",
        CHAT,
        "gpt-4o",
        {"reasoning_effort": "low"},
        "Unrecognized request argument supplied: reasoning_effort",
    ),
    ("openai", CHAT, "gpt-4o", {"guided_json": {}}, "Unrecognized request argument supplied: guided_json"),
    ("openai", RESPONSES, "gpt-4o", {"seed": 3}, "Unknown parameter: 'seed'."),
    ("openai", CHAT, "gpt-4o", {"max_tokens": 20_000}, "supports at most 16384 completion tokens"),
    (
        "anthropic",
        MESSAGES,
        "claude-opus-4-1 claude-sonnet-4-5 claude-haiku-4-5-20251001 claude-opus-4-6",
        {"temperature": 0, "top_p": 1},
        "`temperature` and `top_p` cannot both be specified",
    ),
    (
        "anthropic",
        MESSAGES,
        "claude-haiku-4-5 claude-sonnet-4-5 claude-opus-4-1",
        {"output_config": {"effort": "low"}},
        "This model does not support the effort parameter.",
    ),
    (
        "anthropic",
        MESSAGES,
        "claude-opus-4-6 claude-sonnet-4-6",
        {"output_config": {"effort": "xhigh"}},
        "Supported levels: high, low, max, medium.",
    ),
    ("anthropic", MESSAGES, "claude-opus-4-5", {"output_config": {"effort": "max"}}, "effort level 'max'"),
    (
        "anthropic",
        MESSAGES,
        "claude-opus-4-7 claude-opus-5 claude-sonnet-5 claude-fable-5",
        THINKING,
        '"thinking.type.enabled" is not supported',
    ),
    (
        "anthropic",
        MESSAGES,
        "claude-sonnet-4-5",
        {"thinking": {"type": "adaptive"}},
        "adaptive thinking is not supported",
    ),
    (
        "anthropic",
        MESSAGES,
        "claude-sonnet-4-5",
        {**THINKING, "temperature": 0.2},
        "`temperature` may only be set to 1",
    ),
    (
        "anthropic",
        MESSAGES,
        "claude-sonnet-4-5",
        {**THINKING, "max_tokens": 512},
        "greater than `thinking.budget_tokens`",
    ),
    ("anthropic", MESSAGES, "claude-sonnet-4-5 claude-m", {"stop_sequences": ["\n"]}, "must contain non-whitespace"),
    (
        "anthropic",
        MESSAGES,
        "claude-3-haiku-20240307 claude-sonnet-4-20250514 claude-sonnet-4-0",
        as_output(CLOSED),
        "does not support output format.",
    ),
    ("anthropic", MESSAGES, "claude-sonnet-4-5", as_output(OPEN), "must be explicitly set to false"),
    (
        "anthropic",
        MESSAGES,
        "claude-sonnet-4-5",
        as_output(within({"type": "integer", "maximum": 3})),
        "For 'integer' type, properties maximum are not supported",
    ),
    (
        "anthropic",
        MESSAGES,
        "claude-opus-4-7 claude-opus-4-8 claude-sonnet-5 claude-mythos-preview",
        {"temperature": 1},
        "`temperature` is deprecated for this model.",
    ),
    ("anthropic", MESSAGES, "claude-fable-5 claude-mythos-5", {"tool_choice": {"type": "any"}}, "forcing tool use"),
    ("anthropic", MESSAGES, "claude-sonnet-4-5", {**THINKING, "tool_choice": {"type": "any"}}, "forces tool use"),
    (
        "anthropic",
        MESSAGES,
        "claude-opus-5",
        {"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}},
        "effort 'max' is not supported with thinking disabled",
    ),
    (
        "anthropic",
        MESSAGES,
        "claude-haiku-4-5-20251001",
        {"max_tokens": 100_000},
        "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for claude-haiku",
    ),
    ("anthropic", MESSAGES, "claude-sonnet-4-5", {"temperature": 1.5}, "Input should be less than or equal to 1"),
    (
        "anthropic",
        MESSAGES,
        "claude-opus-4-6 claude-opus-5",
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]},
        "message prefill",
    ),
    ("groq", CHAT, "llama-3.3-70b-versatile qwen/qwen3-32b", as_chat(CLOSED), "does not support response format"),
    (
        "groq",
        CHAT,
        "openai/gpt-oss-20b",
        as_chat(within({"type": "array", "items": {"type": "string"}, "minItems": 1})),
        "response_format/json_schema/a: minItems is not supported",
    ),
    ("groq", CHAT, "openai/gpt-oss-20b", as_chat(OPEN), "'additionalProperties' is required"),
    ("groq", CHAT, "llama-3.3-70b-versatile", {"logprobs": True}, "`logprobs` is not supported"),
    ("mistral", CHAT, "mistral-small-latest", {"seed": 1}, "Extra inputs are not permitted"),
    (
        "mistral",
        CHAT,
        "mistral-small-latest",
        {"reasoning_effort": "medium"},
        "is not supported for this model. Must",
    ),
    (
        "deepseek",
        CHAT,
        "deepseek-chat deepseek-v4-flash",
        as_chat(CLOSED),
        "This response_format type is unavailable now",
    ),
    ("deepseek", CHAT, "deepseek-v4-pro", FORCED, "Thinking mode does not support this tool_choice"),
    ("mistral", CHAT, "ministral-8b-2512 magistral-medium-latest", {"reasoning_effort": "high"}, "not supported"),
    ("xai", CHAT, "grok-4.6 grok-3-mini grok-build-0.1", {"stop": ["x"]}, "does not support parameter stop."),
    ("xai", CHAT, "grok-build-0.1", {"reasoning_effort": "low"}, "does not support parameter reasoningEffort."),
    ("xai", CHAT, "grok-4", {"presence_penalty": 1}, "does not support parameter presencePenalty."),
    ("openai", CHAT, "gpt-5.4 gpt-5.6-luna", {**TOOLS, "reasoning_effort": "low"}, "Function tools with reasoning_"),
    ("openai", CHAT, "gpt-5.6 gpt-6-sol", TOOLS, "or set reasoning_effort to 'none'."),
    ("xai", CHAT, "grok-4.6", as_chat(within({"type": "string", "maxLength": 5})), "Invalid arguments passed to"),
    ("xai", CHAT, "grok-4.5 grok-4.6", {"reasoning_effort": "none"}, "'reasoning_effort' value 'none'"),
    ("xai", CHAT, "grok-4.3 grok-4.5", {"reasoning_effort": "xhigh"}, "'reasoning_effort' value 'xhigh'"),
    ("moonshot", CHAT, "kimi-k2.6 kimi-k3", {"reasoning_effort": "none"}, "invalid reasoning_effort"),
    ("moonshot", CHAT, "kimi-k2.6", {**UNTHINKING, "temperature": 1}, "invalid temperature: only 0.6 is allowed"),
    ("moonshot", CHAT, "kimi-k2.7-code kimi-k3", UNTHINKING, "invalid thinking"),
    (
        "moonshot",
        CHAT,
        "kimi-k2.6",
        {"thinking": {"type": "enabled"}, "reasoning_effort": "low"},
        "cannot specify both",
    ),
    ("moonshot", CHAT, "kimi-k2.6 kimi-k3", FORCED, "is incompatible with thinking enabled"),
    (
        "gemini",
        GENERATE,
        "gemini-2.5-flash gemini-3.8-flash",
        config(presencePenalty=1),
        "Penalty is not enabled for",
    ),
    (
        "gemini",
        GENERATE,
        "gemini-2.5-pro",
        config(responseLogprobs=True),
        "Logprobs is not enabled for models/gemini",
    ),
    (
        "vertex",
        GENERATE,
        "gemini-3.5-flash",
        config(responseLogprobs=True),
        "Logprobs is not supported for this model",
    ),
    (
        "gemini",
        GENERATE,
        "gemini-3.8-flash gemini-3.1-pro-preview",
        thinking("minimal"),
        "level MINIMAL is not supported",
    ),
    ("vertex", GENERATE, "gemini-2.5-flash", thinking("low"), "Thinking level is not supported for this model"),
    ("gemini", GENERATE, "gemini-2.5-pro", config(thinkingConfig={"thinkingBudget": 0}), "Budget 0 is invalid"),
    (
        "gemini",
        GENERATE,
        "gemma-3-27b-it",
        {"systemInstruction": {"parts": [{"text": "x"}]}},
        "Developer instruction",
    ),
    ("gemini", GENERATE, "gemma-3-27b-it", config(responseMimeType="application/json"), "JSON mode is not enabled"),
    ("bedrock", CONVERSE, f"{OPUS_5} global.xai.grok-4.6", inference(temperature=0.5), "temperature"),
    ("bedrock", CONVERSE, HAIKU_4_5, inference(temperature=0.5, topP=0.5), "cannot both be specified"),
    ("bedrock", CONVERSE, HAIKU_4_5, inference(maxTokens=100_000), "exceeds the model limit of 64000"),
    ("bedrock", CONVERSE, HAIKU_4_5, inference(stopSequences=["\n"]), "must contain non-whitespace"),
    (
        "bedrock",
        CONVERSE,
        "openai.gpt-oss-20b-1:0 qwen.qwen3-32b-v1:0",
        inference(stopSequences=["x"]),
        "stopSequences",
    ),
    (
        "moonshot",
        CHAT,
        "kimi-k2.5 kimi-k3",
        {"temperature": 0},
        "invalid temperature: only 1 is allowed for this model",
    ),
    ("openrouter", CHAT, "openai/gpt-4o", as_chat(OPEN), "Provider returned error"),
]

TAKEN: list[tuple[str, str, str, Json]] = [
    ("openai", CHAT, REASONERS, {"max_completion_tokens": 9, "temperature": 1, "top_p": 1, **as_chat(CLOSED)}),
    ("openai", CHAT, "gpt-5.4-nano gpt-5.1 gpt-5-chat-latest gpt-4o", {"temperature": 0, "logprobs": True}),
    ("openai", CHAT, "gpt-5.6 gpt-5.5", {"temperature": 0, "reasoning_effort": "none"}),
    ("openai", CHAT, "gpt-5.6-luna gpt-6.1-terra our-deployment", EXPLICIT),
    ("openai", RESPONSES, "gpt-5.6-sol", EXPLICIT),
    ("openai", CHAT, "o3-mini o1 gpt-4o", {"stop": ["x"]}),
    ("openai", CHAT, "gpt-5.6 gpt-5.4", {**TOOLS, "reasoning_effort": "none"}),
    ("openai", CHAT, "gpt-5.4 gpt-5-mini", TOOLS),
    ("openai", CHAT, "gpt-4o gpt-5", as_chat(OPEN, strict=False)),
    ("openai", CHAT, "gpt-4-turbo gpt-4o", {**JSON_OBJECT, "messages": [{"role": "user", "content": "as JSON"}]}),
    ("openai", CHAT, "m our-deployment", {"max_tokens": 9, "temperature": 0, "stop": ["x"], "logprobs": True}),
    ("openai", RESPONSES, "gpt-5-pro o3-pro gpt-5.2-codex gpt-4o", {"max_output_tokens": 16, **as_text(CLOSED)}),
    ("openai", CHAT, "gpt-4o-search-preview", {"max_tokens": 9, "web_search_options": {}, **as_chat(CLOSED)}),
    ("openai", EMBEDDINGS, "text-embedding-3-small", {"dimensions": 256}),
    ("anthropic", MESSAGES, "claude-3-haiku-20240307 claude-sonnet-4-0", {"temperature": 0, "top_p": 0.5}),
    ("anthropic", MESSAGES, "claude-opus-4-1 claude-haiku-4-5 claude-opus-5", as_output(OPTIONAL)),
    ("anthropic", MESSAGES, "claude-opus-4-7 claude-opus-5", {"output_config": {"effort": "xhigh"}}),
    ("anthropic", MESSAGES, "claude-sonnet-4-5 claude-opus-4-6", THINKING),
    ("anthropic", MESSAGES, "claude-opus-4-6", {"thinking": {"type": "adaptive"}, "tool_choice": {"type": "any"}}),
    ("groq", CHAT, "openai/gpt-oss-120b", as_chat(CLOSED)),
    ("mistral", CHAT, "mistral-small-latest", {"random_seed": 1, "max_tokens": 9, **as_chat(OPEN)}),
    ("xai", CHAT, "grok-4.3", {"temperature": 0, **as_chat(OPEN)}),
    ("xai", CHAT, "grok-4.6 grok-4.20-multi-agent", {"reasoning_effort": "xhigh"}),
    ("xai", CHAT, "grok-4.3", {"reasoning_effort": "none"}),
    ("moonshot", CHAT, "kimi-k2.5", {"temperature": 1}),
    ("moonshot", CHAT, "kimi-k3", {"reasoning_effort": "max"}),
    ("moonshot", CHAT, "kimi-k2.6", {**UNTHINKING, **FORCED, "temperature": 0.6}),
    ("deepseek", CHAT, "deepseek-v4-flash", {**UNTHINKING, **FORCED}),
    ("deepseek", CHAT, "deepseek-v4-flash deepseek-chat", {**TOOLS, "tool_choice": "auto", "temperature": 0}),
    ("mistral", CHAT, "mistral-small-latest", {"reasoning_effort": "high"}),
    ("vertex", GENERATE, "gemini-2.5-flash", config(responseLogprobs=True, logprobs=2, frequencyPenalty=1.0)),
    ("gemini", GENERATE, "gemini-3.6-flash gemini-3-flash-preview", thinking("minimal")),
    ("gemini", GENERATE, "gemini-2.5-flash", config(thinkingConfig={"thinkingBudget": 0})),
    ("bedrock", CONVERSE, "us.amazon.nova-lite-v1:0 openai.gpt-oss-20b-1:0", inference(temperature=0.5, topP=0.5)),
    ("openrouter", CHAT, "openai/gpt-5 anthropic/claude-opus-5", {"max_tokens": 9, "temperature": 0}),
]
