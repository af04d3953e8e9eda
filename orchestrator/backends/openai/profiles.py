"""Profiles of Batch APIs that use OpenAI's protocol. Data only.

The sources are the providers' own pages, as of 2026-11. For Zhipu, the source is zai-sdk 0.2.3
(api_resource/batch/batches.py). orch.toml may override the profile of each backend.
"""

from __future__ import annotations

from decimal import Decimal
from urllib.parse import urlsplit

from orchestrator.backends.profiles import CHAT_ONLY, DAY, GB, MB, OWN_SERVER, BatchLimits, Profile

# MB is the smaller unit (10^6), unless somebody measured a provider's limit.
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("openai", limits=BatchLimits(max_inputs=50_000, batches_per_hour=2_000), provider="openai"),
        # Files with an expiry raise Azure's cap of 500 files to 10,000; two weeks are the shortest expiry. Rows name
        # deployments, which Azure's list of models does not have.
        Profile(
            "azure",
            limits=BatchLimits(max_rows=100_000, max_bytes=200 * MB),
            provider="azure",
            overruns=True,
            expires_after=14 * DAY,
            lists_models=False,
            # A Global-Batch deployment accepts only batches.
            asks_directly=False,
        ),
        Profile(
            "groq",
            windows=("24h", "48h", "72h", "96h", "120h", "144h", "7d"),
            limits=BatchLimits(max_bytes=100 * MB),
            provider="groq",
            endpoints=CHAT_ONLY,
        ),
        # Doubleword lists prices by tier, not as a share of another price.
        Profile(
            "doubleword",
            windows=("1h", "24h"),
            limits=BatchLimits(max_bytes=200 * MB),
            provider="doubleword",
            discount=None,
        ),
        Profile("parasail", limits=BatchLimits(max_bytes=500 * MB)),
        # Nebius takes 5,000,000 rows in 10 GB, but orch holds a batch's ids in memory while collecting.
        Profile("nebius", limits=BatchLimits(max_rows=200_000, max_bytes=2 * GB)),
        Profile("deepinfra", discount=Decimal("0.2")),
        # Alibaba's Model Studio: windows are whole hours up to 336; whole days are enough for us. Batch Chat is its
        # synchronous host, which queues a call for up to an hour at the same half price.
        Profile(
            "alibaba",
            windows=tuple(f"{24 * days}h" for days in range(1, 15)),
            limits=BatchLimits(max_bytes=500 * MB),
            endpoints=CHAT_ONLY | {"/v1/embeddings"},
        ),
        Profile("alibaba-batch-chat", endpoints=CHAT_ONLY, at_once_as_batch=True),
        # By default, Zhipu deletes the input file, whose rows orch needs to identify a batch.
        Profile(
            "zhipu",
            limits=BatchLimits(max_bytes=100 * MB),
            provider="zhipuai",
            endpoints=CHAT_ONLY | {"/v1/embeddings"},
            path="/v4",
            create_fields=(("auto_delete_input_file", False),),
        ),
        Profile(
            "moonshot",
            windows=("12h", "1d", "3d", "7d"),
            limits=BatchLimits(max_bytes=100 * MB),
            provider="moonshotai",
            discount=None,
            endpoints=CHAT_ONLY,
        ),
        Profile(
            "siliconflow", limits=BatchLimits(max_rows=5_000, max_bytes=1 * GB), overruns=True, endpoints=CHAT_ONLY
        ),
        Profile("novita", windows=("48h",), provider="novita", discount=None, endpoints=CHAT_ONLY),
        OWN_SERVER,
        Profile("other", discount=None),
    )
}

_HOSTS = {
    "api.openai.com": "openai",
    "api.groq.com": "groq",
    "doubleword.ai": "doubleword",
    "api.parasail.io": "parasail",
    "tokenfactory.nebius.com": "nebius",
    "api.deepinfra.com": "deepinfra",
    "batch.dashscope.aliyuncs.com": "alibaba-batch-chat",
    "dashscope.aliyuncs.com": "alibaba",
    "dashscope-intl.aliyuncs.com": "alibaba",
    "dashscope-us.aliyuncs.com": "alibaba",
    "maas.aliyuncs.com": "alibaba",
    "open.bigmodel.cn": "zhipu",
    "api.moonshot.ai": "moonshot",
    "api.moonshot.cn": "moonshot",
    "api.siliconflow.cn": "siliconflow",
    "api.siliconflow.com": "siliconflow",
    "api.novita.ai": "novita",
    "openai.azure.com": "azure",
    "services.ai.azure.com": "azure",
}


def profile_of(kind: str, base_url: str, name: str | None = None) -> Profile:
    """Return the profile called `name`, or else the profile for this address, `other` if the address is unknown.

    Raises KeyError for an unknown name.
    """
    if name is not None:
        return PROFILES[name]
    if kind == "azure":
        return PROFILES["azure"]
    host = urlsplit(base_url).hostname or ""
    known = next((known for end, known in _HOSTS.items() if host == end or host.endswith("." + end)), "other")
    return PROFILES[known]
