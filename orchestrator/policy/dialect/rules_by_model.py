"""Fields that models refuse or spell differently: one rule per line, with its source. Pure data.

Sources: providers' pages and SDKs as of 2026-11, findings of pydantic-ai 2026-11, and refusals that users posted or
orch recorded. A name like `owner/repo#1` is an issue on GitHub. Rules apply from top to bottom.
"""

from __future__ import annotations

from functools import partial

from orchestrator.core.batch_api import CHAT, EMBEDDINGS, RESPONSES
from orchestrator.policy.dialect import openai_transforms as openai
from orchestrator.policy.dialect.draft import system_into_question
from orchestrator.policy.dialect.rules import (
    Bounded,
    By,
    NotAbove,
    NotForced,
    NotMore,
    NotTaken,
    NotThere,
    NotTogether,
    OnlyValues,
    Renamed,
    TableRule,
    is_thinking,
    is_unthinking,
)
from orchestrator.policy.dialect.structured import (
    ask_for_an_object,
    ask_loosely,
    ask_strictly,
    ask_strictly_or_for_an_object,
    ask_strictly_without_limits,
)

# An unknown server is treated as a proxy: OpenAI's rules apply if its model has the name of an OpenAI model.
_OPENAI = ("openai", "azure", "other")
_ANY = ""
_KNOWN_AS_OPENAIS = r"gpt-(3\.5|35|4|5|6|audio)|o\d|chatgpt|codex|computer-use"
# Some rules apply to every model at OpenAI and Azure, because owners name their deployments freely.
_EVERY_OPENAI_MODEL = ((("openai", "azure"), _ANY), (("other",), _KNOWN_AS_OPENAIS))
_SAMPLING = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
)
_OPENAI_WITHOUT_CACHE_OPTIONS = r"gpt-(3\.?5|4|5(?!\.[6-9]))|o\d|chatgpt|codex"
_DEEPSEEK_THINKS = r"deepseek-(reasoner|v[4-9])"
_KIMI_THINKS = r"kimi-k(2\.[5-9]|[3-9])"
_KIMI_ALWAYS_THINKS = r"kimi-k(2\.7-code|[3-9])"
_MISTRAL_WITHOUT_EFFORTS = r"ministral|magistral|codestral|devstral|pixtral|open-"
_XAI_EFFORTS = "xAI's guide to reasoning; pydantic-ai's profiles; can1357/oh-my-pi#4888 and #8369"
_CHAT = (CHAT,)
_VECTORS = (EMBEDDINGS,)
_PROMPTED = (CHAT, RESPONSES)
_moonshot = partial(TableRule, ("moonshot",), endpoints=_CHAT)

_OPENAI_RULES = (
    *(
        TableRule(
            providers,
            models,
            By(openai.respell),
            "OpenAI's reference: Unknown parameter, this parameter has moved",
            endpoints=(RESPONSES,),
        )
        for providers, models in _EVERY_OPENAI_MODEL
    ),
    *(
        TableRule(
            ("openai", "azure"),
            models,
            NotThere(is_for),
            "OpenAI's model pages: This is not a chat model; cannot be used with the Responses API",
            endpoints=_PROMPTED,
        )
        for models, is_for in (
            (r"text-(embedding|similarity|search)", "embeddings"),
            (r"gpt-3\.?5-turbo-instruct|davinci|babbage", "completions"),
            (r"whisper|tts-|gpt-4o(-mini)?-(transcribe|tts)", "sound"),
            (r"gpt-(4o(-mini)?-)?realtime", "realtime sessions"),
            (r"(chat)?gpt-image|dall-e|sora", "pictures"),
            (r"(omni|text)-moderation", "moderation"),
        )
    ),
    TableRule(
        ("openai", "azure"),
        r"gpt-4o(-mini)?-(search|audio)|gpt-5-search|gpt-audio|o1-mini",
        NotThere("chat completions alone"),
        "truefoundry/models#2006, after OpenAI's model pages: Responses not supported",
        endpoints=(RESPONSES,),
    ),
    TableRule(
        ("openai",),
        r"gpt-|o\d|chatgpt|codex|computer-use|davinci|babbage",
        NotThere("text"),
        "OpenAI's reference of embeddings: You are not allowed to generate embeddings from this model",
        endpoints=_VECTORS,
    ),
    # Not for "other": a proxy may serve these models at either endpoint.
    TableRule(
        ("openai", "azure"),
        r"gpt-[5-9](\.\d)?-(pro|cyber|rosalind)|gpt-(daybreak|rosalind)|o\d-pro|.*codex|.*deep-research|computer-use",
        By(openai.to_responses),
        "OpenAI's model pages: 'This model is only supported in v1/responses'; the SDK's list of such models",
        endpoints=_CHAT,
    ),
    TableRule(
        _OPENAI,
        r"gpt-[5-9]|o\d|codex|computer-use",
        Renamed("max_tokens", "max_completion_tokens"),
        "langflow-ai/openrag#398",
        endpoints=_CHAT,
    ),
    *(
        TableRule(
            providers,
            models,
            Bounded("max_output_tokens", least=16),
            "earendil-works/pi#6265",
            endpoints=(RESPONSES,),
        )
        for providers, models in _EVERY_OPENAI_MODEL
    ),
    TableRule(
        _OPENAI,
        _KNOWN_AS_OPENAIS,
        By(openai.bound_answer),
        "OpenAI's model pages: max_tokens is too large",
        endpoints=_PROMPTED,
    ),
    *(
        TableRule(
            providers,
            models,
            change,
            "OpenAI's reference: decimal above maximum value",
            endpoints=_PROMPTED,
            when=lambda draft: not openai.reasons(draft),
        )
        for providers, models in _EVERY_OPENAI_MODEL
        for change in (NotAbove("temperature", 2), NotAbove("top_logprobs", 20))
    ),
    *(
        TableRule(providers, models, NotMore("stop", 4), "OpenAI's reference: array too long", endpoints=_CHAT)
        for providers, models in _EVERY_OPENAI_MODEL
    ),
    TableRule(
        _OPENAI,
        _OPENAI_WITHOUT_CACHE_OPTIONS,
        NotTaken(("prompt_cache_options",)),
        "openai 3.52 (chat/completion_create_params.py): supported for gpt-5.6 and later; theopenco/llmgateway#2979",
        read="2026-11-30",
        endpoints=_PROMPTED,
    ),
    TableRule(_OPENAI, r"o1", OnlyValues("n", (1,)), "OpenAI's guide to reasoning", endpoints=_CHAT),
    TableRule(_OPENAI, r"o1-(mini|preview)", By(system_into_question), "pydantic/pydantic-ai#974", endpoints=_CHAT),
    TableRule(
        _OPENAI,
        _KNOWN_AS_OPENAIS,
        By(openai.check_effort),
        "OpenAI's guide to reasoning; pydantic-ai's profiles",
        endpoints=_PROMPTED,
    ),
    TableRule(
        _OPENAI,
        _KNOWN_AS_OPENAIS,
        NotTaken(
            _SAMPLING,
        ),
        "tmc/langchaingo#1355, confident-ai/deepeval#2184; pydantic-ai's profiles",
        endpoints=_PROMPTED,
        when=openai.reasons,
    ),
    TableRule(
        _OPENAI,
        _KNOWN_AS_OPENAIS,
        By(openai.check_included_logprobs),
        "vllm-project/vllm#23319",
        endpoints=(RESPONSES,),
        when=openai.reasons,
    ),
    # Not for "other": a proxy may forward the request to the Responses API.
    TableRule(
        ("openai", "azure"),
        r"gpt-5\.[2-5](?!-chat)",
        NotTogether("tools", "reasoning_effort"),
        "pipecat-ai/pipecat#4043, livekit/agents#5088, charmbracelet/crush#2913",
        "2026-11-30",
        endpoints=_CHAT,
        when=openai.reasons,
    ),
    TableRule(
        ("openai", "azure"),
        r"gpt-5\.[6-9]|gpt-[6-9]",
        By(openai.check_tools),
        "BerriAI/litellm#34569: also without an effort, as they reason by default",
        "2026-11-30",
        endpoints=_CHAT,
    ),
    TableRule(
        _OPENAI,
        r"gpt-4o(-mini)?-search",
        NotTaken(("temperature", "top_p", "presence_penalty", "frequency_penalty")),
        "vercel/ai#5647, ChatGPTNextWeb/NextChat#6569: Model incompatible request arguments supplied",
        endpoints=_CHAT,
    ),
    TableRule(
        _OPENAI,
        r"gpt-[5-9](?!-chat)|o[34](?!-mini)|o4-mini|codex",
        NotTaken(("stop",)),
        "OpenAI's reference: not supported with the latest reasoning models; recorded with gpt-5-mini",
        endpoints=_CHAT,
    ),
    TableRule(
        _OPENAI,
        r"o1-(mini|preview)|gpt-4$|gpt-4-(0314|0613|32k|vision)|gpt-3\.?5-turbo-(0301|0613|16k)",
        By(openai.ask_without_json_mode),
        "OpenAI's guides to structured outputs and to JSON mode",
        endpoints=_PROMPTED,
    ),
    TableRule(
        _OPENAI,
        r"gpt-4-|gpt-3\.?5|gpt-4o-2024-05-13|chatgpt-4o|gpt-4o(-mini)?-audio|gpt-audio",
        By(ask_for_an_object),
        "OpenAI's guide to structured outputs: from gpt-4o-2024-08-06 on, and not with audio",
        endpoints=_PROMPTED,
    ),
    *(
        TableRule(
            providers,
            models,
            By(ask_strictly),
            "moeru-ai/xsai#145; OpenAI's guide to structured outputs",
            endpoints=_CHAT,
        )
        for providers, models in _EVERY_OPENAI_MODEL
    ),
    *(
        TableRule(
            providers,
            models,
            By(openai.ask_responses_strictly),
            "the same in the Responses API",
            endpoints=(RESPONSES,),
        )
        for providers, models in _EVERY_OPENAI_MODEL
    ),
    TableRule(
        _OPENAI,
        r"text-embedding-ada-002",
        NotTaken(("dimensions",), why="makes vectors of one size, and takes no dimensions"),
        "OpenAI's reference of embeddings",
        endpoints=_VECTORS,
    ),
    TableRule(
        _OPENAI,
        r"text-embedding-3-small",
        NotAbove("dimensions", 1536),
        "OpenAI's embeddings",
        endpoints=_VECTORS,
    ),
    TableRule(
        _OPENAI,
        r"text-embedding-3-large",
        NotAbove("dimensions", 3072),
        "OpenAI's embeddings",
        endpoints=_VECTORS,
    ),
)

_OTHER_RULES = (
    *(
        TableRule((provider,), models, NotThere(is_for), source, endpoints=_CHAT)
        for provider, models, is_for, source in (
            ("openrouter", r".*embed", "embeddings", "decolua/9router#1304: cannot be used with chat/completions"),
            ("mistral", r".*embed", "embeddings", "Mistral's model pages"),
            ("mistral", r"mistral-(ocr|moderation)", "another endpoint", "Mistral's model pages"),
            ("groq", r"(distil-)?whisper|playai-tts|orpheus", "sound", "Groq's model pages"),
            ("xai", r"grok-(\d-image|imagine)", "pictures", "xAI's model pages"),
        )
    ),
    # OpenRouter leaves out settings that a model refuses, but passes schemas on unchanged.
    TableRule(
        ("openrouter",),
        _KNOWN_AS_OPENAIS,
        By(ask_strictly),
        "moeru-ai/xsai#202: Provider returned error",
        endpoints=_CHAT,
    ),
    TableRule(
        ("groq",),
        _ANY,
        NotTaken(("logprobs", "top_logprobs", "logit_bias")),
        "Groq's page on compatibility with OpenAI: these fields are refused",
        endpoints=_CHAT,
    ),
    TableRule(("groq",), _ANY, OnlyValues("n", (1,)), "the same page", endpoints=_CHAT),
    *(
        TableRule((provider,), _ANY, NotAbove("temperature", most), "their references", endpoints=_CHAT)
        for provider, most in (("groq", 2), ("deepseek", 2), ("xai", 2), ("mistral", 1.5), ("moonshot", 1))
    ),
    *(
        TableRule(("groq",), models, change, "Groq's guide to reasoning", endpoints=_CHAT)
        for models, change in (
            (r"gpt-oss", OnlyValues("reasoning_effort", ("low", "medium", "high"))),
            (r"qwen3", OnlyValues("reasoning_effort", ("none", "default"))),
            (r"(?!gpt-oss|qwen3)", NotTaken(("reasoning_effort",))),
        )
    ),
    TableRule(
        ("groq",),
        r"(?!gpt-oss|llama-4|kimi-k2)",
        By(ask_for_an_object),
        "plune-ai/cairn#36: This model does not support response format `json_schema`",
        endpoints=_CHAT,
    ),
    TableRule(
        ("groq",),
        r"gpt-oss",
        By(ask_strictly_without_limits),
        "i-am-bee/beeai-framework#1215",
        endpoints=_CHAT,
    ),
    TableRule(
        ("groq",),
        _ANY,
        By(ask_loosely),
        "Groq's guide to structured outputs: strict is for gpt-oss",
        endpoints=_CHAT,
        when=lambda draft: "gpt-oss" not in draft.model,
    ),
    TableRule(("mistral",), _ANY, Renamed("seed", "random_seed"), "editor-code-assistant/eca#231; mistralai 3.7"),
    TableRule(("mistral",), _ANY, Renamed("max_completion_tokens", "max_tokens"), "mistralai 3.7: no such field"),
    TableRule(
        ("mistral",),
        _ANY,
        NotTaken(
            (
                *(
                    "logprobs",
                    "top_logprobs",
                    "logit_bias",
                    "user",
                    "store",
                    "service_tier",
                    "verbosity",
                    "modalities",
                ),
                *("prompt_cache_options", "prompt_cache_retention"),
            ),
        ),
        "mistralai 3.7: Extra inputs are not permitted",
        endpoints=_CHAT,
    ),
    TableRule(
        ("deepseek",),
        _ANY,
        Renamed("max_completion_tokens", "max_tokens"),
        "earendil-works/pi#8018: this name is ignored, and the answer has no bound",
        endpoints=_CHAT,
    ),
    TableRule(
        ("deepseek",),
        _ANY,
        By(ask_for_an_object),
        "UKGovernmentBEIS/inspect_ai#4916: This response_format type is unavailable now",
        endpoints=_CHAT,
    ),
    TableRule(
        ("deepseek",),
        r"deepseek-reasoner",
        NotTaken(("logprobs", "top_logprobs")),
        "DeepSeek's guide to its reasoning model: these fields are an error",
        endpoints=_CHAT,
    ),
    *(
        TableRule(("deepseek",), _DEEPSEEK_THINKS, change, source, "2026-11-30", endpoints=_CHAT, when=is_thinking)
        for change, source in (
            (NotForced(), "deepseek-ai/DeepSeek-V3#1376: Thinking mode does not support this tool_choice"),
            (
                NotTaken(("temperature", "top_p", "presence_penalty", "frequency_penalty")),
                "DeepSeek's guide to thinking, in anomalyco/models.dev#1558: they are no error, and have no effect",
            ),
        )
    ),
    TableRule(
        ("xai",),
        _ANY,
        By(ask_strictly_or_for_an_object),
        "openclaw/openclaw#32080; xAI's guide to structured outputs: no minLength, maxItems and the like",
        "2026-11-30",
        endpoints=_CHAT,
    ),
    TableRule(
        ("xai",),
        r"grok-[4-9]|grok-3-mini|grok-(code|build)",
        NotTaken(("stop", "presence_penalty", "frequency_penalty")),
        "lidge-jun/opencodex#5278; xAI's guide to reasoning",
        endpoints=_PROMPTED,
    ),
    TableRule(
        ("xai",),
        r"grok-[23]($|-fast|-latest|-1212)|grok-4($|-0709|-latest|-fast|-1|\.20(?!-multi))|grok-(code|build)",
        NotTaken(("reasoning_effort",)),
        "xAI's guide to reasoning, earendil-works/pi#8381: Model grok-4 does not support parameter reasoningEffort",
        endpoints=_PROMPTED,
    ),
    *(
        TableRule(
            (provider,), models, OnlyValues("reasoning_effort", efforts), source, "2026-11-30", endpoints=_PROMPTED
        )
        for provider, models, source, efforts in (
            ("xai", r"grok-3-mini", _XAI_EFFORTS, ("low", "high")),
            ("xai", r"grok-4\.3", _XAI_EFFORTS, ("low", "none", "medium", "high")),
            ("xai", r"grok-4\.5", _XAI_EFFORTS, ("high", "low", "medium")),
            ("xai", r"grok-4\.([6-9]|20-multi)", _XAI_EFFORTS, ("high", "low", "medium", "xhigh")),
            ("moonshot", r"kimi-k[3-9]", "BerriAI/litellm#38611, theopenco/llmgateway#3378", ("max", "low", "high")),
            (
                "moonshot",
                r"kimi-k2(\.[5-9]|-thinking)",
                "pydantic-ai's profiles",
                ("medium", "minimal", "low", "high"),
            ),
            ("mistral", rf"(?!{_MISTRAL_WITHOUT_EFFORTS})", "architects-toolkit/SmartHopper#647", ("none", "high")),
        )
    ),
    TableRule(
        ("mistral",),
        _MISTRAL_WITHOUT_EFFORTS,
        NotTaken(("reasoning_effort",)),
        "tontinton/maki#396, NousResearch/hermes-agent#11243, after Mistral's guide to reasoning",
        "2026-11-30",
        endpoints=_CHAT,
    ),
    # With `drop`, a rule does not see the fields that earlier rules have left out, so the order matters.
    _moonshot(
        _KIMI_ALWAYS_THINKS,
        NotTaken(("thinking",), why="always thinks, and takes no thinking of type disabled"),
        "theopenco/llmgateway#3065, agentscope-ai/agentscope-java#2320",
        "2026-11-30",
        when=is_unthinking,
    ),
    _moonshot(_KIMI_THINKS, NotTogether("thinking", "reasoning_effort"), "HKUDS/nanobot#3939", "2026-11-30"),
    _moonshot(_KIMI_THINKS, NotForced(), "can1357/oh-my-pi#1077", "2026-11-30", when=is_thinking),
    *(
        _moonshot(_KIMI_THINKS, OnlyValues("temperature", (only,)), source, "2026-11-30", when=when)
        for only, when, source in (
            (1, is_thinking, "moona3k/macparakeet#1087: only 1 is allowed for this model"),
            (0.6, is_unthinking, "MoonshotAI/kimi-code#686: only 0.6 is allowed for this model"),
        )
    ),
    _moonshot(_KIMI_THINKS, OnlyValues("n", (1,)), "Moonshot's page on the model: fixed values"),
    _moonshot(_KIMI_THINKS, OnlyValues("top_p", (0.95,)), "the same page"),
    _moonshot(_KIMI_THINKS, NotTaken(("presence_penalty", "frequency_penalty")), "the same page"),
)

RULES = _OPENAI_RULES + _OTHER_RULES
