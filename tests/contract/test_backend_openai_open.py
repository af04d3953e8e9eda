"""orch.toml and the environment made into a backend: profiles, windows, limits, keys."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any

import pytest
from genai_prices.data import providers
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.backends.anthropic.settings import AnthropicBackend
from orchestrator.backends.open import limits_of, open_backend, profile_for
from orchestrator.backends.openai.profiles import PROFILES, profile_of
from orchestrator.backends.openai.settings import OpenAIBackend
from orchestrator.backends.package import package_of
from orchestrator.backends.profiles import Profile, window_for
from orchestrator.core.durations import window_seconds as served_seconds
from orchestrator.core.errors import UsageError
from orchestrator.settings.backend_packages import hosted_kinds
from orchestrator.settings.backends import window_seconds
from tests.support.scripted import Answer, scripted

DAY = 86_400


def hosted(**fields: Any) -> OpenAIBackend:
    return OpenAIBackend.model_validate({"kind": "openai", "api_key_env": "THE_KEY", **fields})


def claude(**fields: Any) -> AnthropicBackend:
    return AnthropicBackend.model_validate({"kind": "anthropic", "api_key_env": "THE_KEY", **fields})


ADDRESSES = {
    "https://api.openai.com/v1": "openai",
    "https://api.groq.com/openai/v1": "groq",
    "https://api.us.doubleword.ai/v1": "doubleword",
    "https://res.openai.azure.com/openai/v1/": "azure",
    "https://api.tokenfactory.nebius.com/v1/": "nebius",
    "https://dashscope-intl.aliyuncs.com/compatible-mode/v1": "alibaba",
    "https://my-space.ap-southeast-1.maas.aliyuncs.com/compatible-mode/v1": "alibaba",
    "https://batch.dashscope.aliyuncs.com/compatible-mode/v1": "alibaba-batch-chat",
    "https://open.bigmodel.cn/api/paas/v4": "zhipu",
    "https://api.moonshot.cn/v1": "moonshot",
    "https://api.siliconflow.cn/v1": "siliconflow",
    "https://api.novita.ai/openai/v1": "novita",
    "https://notapi.openai.com.example.org/v1": "other",
    "https://openai.example.org/v1": "other",
    "http://127.0.0.1:8080/v1": "other",
}


@pytest.mark.parametrize(("address", "name"), ADDRESSES.items())
def test_a_provider_is_told_from_its_address(address: str, name: str) -> None:
    assert profile_of("openai", address).name == name


def test_a_profile_that_is_named_goes_before_the_address() -> None:
    assert profile_for(hosted(profile="orch")).is_orch
    assert profile_for(hosted(kind="azure", base_url="https://proxy.example.org/v1")).name == "azure"
    assert profile_for(claude()).name == "anthropic"
    with pytest.raises(ValidationError, match="is not a known profile; did you mean 'openai'"):
        hosted(profile="opnai")
    with pytest.raises(ValidationError, match="is not a known profile; known: openai, azure, groq"):
        hosted(profile="nobody")


def test_what_orch_toml_says_goes_before_the_profile() -> None:
    settings = hosted(
        base_url="https://api.novita.example/v1",
        windows=("48h",),
        provider="novita",
        discount="0.4",
        limits={"max_rows": 10, "enqueued_tokens": 2_000_000},
    )
    profile = profile_for(settings)
    assert (profile.windows, profile.provider, profile.discount) == (("48h",), "novita", Decimal("0.4"))
    limits = limits_of(settings, profile)
    assert (limits.max_rows, limits.max_bytes) == (10, PROFILES["other"].limits.max_bytes)
    assert limits.enqueued("anything") == 2_000_000
    named = limits_of(hosted(limits={"enqueued_tokens": {"m": 5}}), PROFILES["openai"])
    assert (named.enqueued("m"), named.enqueued("other"), named.batches_per_hour) == (5, None, 2_000)


def test_the_price_table_has_the_providers_that_profiles_name() -> None:
    told = {"api_key_env": "K", "base_url": "https://api.example"}
    packages = {package_of(kind.model_construct(kind=name, **told)) for name, kind in hosted_kinds().items()}
    of_kinds = [vars(sys.modules[type(one).__module__]).get("PROFILE") for one in packages]
    assert of_kinds.count(None) == 1, "OpenAI's package alone has many"
    named = {profile.provider for profile in (*PROFILES.values(), *of_kinds) if profile and profile.provider}
    assert named <= {provider.id for provider in providers}
    assert named == {
        "openai", "azure", "groq", "doubleword", "anthropic", "zhipuai", "moonshotai", "novita",
        "google", "mistral", "aws", "x-ai", "openrouter", "together", "fireworks", "cohere",
    }  # fmt: skip


WINDOWS = {
    "the only one": ("openai", 3_600, "24h"),
    "the shortest where none fits": ("doubleword", 600, "1h"),
    "the longest that fits": ("doubleword", 5 * 3_600, "1h"),
    "just fits": ("doubleword", DAY, "24h"),
    "days": ("groq", 3 * DAY + 5, "72h"),
    "more than there is": ("groq", 30 * DAY, "7d"),
    "any: hours": ("orch", 7_200, "2h"),
    "any: minutes": ("orch", 5_400, "90m"),
    "any: seconds": ("orch", 5_401, "5401s"),
    "any: at once": ("orch", -5, "1s"),
}


@pytest.mark.parametrize(("name", "left", "text"), WINDOWS.values(), ids=WINDOWS)
def test_the_window_of_a_batch(name: str, left: int, text: str) -> None:
    assert window_for(PROFILES[name], left).text == text


@given(st.sampled_from(sorted(PROFILES)), st.integers(-10, 40 * DAY))
def test_a_window_is_one_that_the_provider_has_and_its_length_is_what_it_says(name: str, left: int) -> None:
    profile = PROFILES[name]
    window = window_for(profile, left)
    assert served_seconds(window.text) == window.seconds
    if profile.windows:
        assert window.text in profile.windows
        assert window.seconds <= left or window.seconds == min(map(window_seconds, profile.windows))
    else:
        assert window.seconds == max(1, left)


@given(st.permutations(["1h", "24h", "7d"]), st.integers(1, 40 * DAY))
def test_the_order_of_windows_in_orch_toml_does_not_matter(windows: list[str], left: int) -> None:
    sorted_ones = Profile("x", windows=("1h", "24h", "7d"))
    assert window_for(Profile("x", windows=tuple(windows)), left) == window_for(sorted_ones, left)


@pytest.mark.parametrize("settings", [hosted(), claude()], ids=["openai", "anthropic"])
def test_a_key_that_is_not_there_is_named_by_its_variable(settings: OpenAIBackend | AnthropicBackend) -> None:
    for environ in ({}, {"THE_KEY": ""}, {"THE_KEY": " \n"}):
        with pytest.raises(UsageError, match="THE_KEY is not set; it must hold the key of backend cloud"):
            open_backend("cloud", settings, environ)


@pytest.mark.parametrize("key", ["sk-two words", "sk-\u00e4", "sk-a\nb", '"sk\t"'])
def test_a_key_that_is_none_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(UsageError, match="variable THE_KEY is not a key: it has invalid characters") as caught:
        open_backend("cloud", hosted(), {"THE_KEY": key})
    assert key.strip() not in str(caught.value)


def test_only_what_orch_toml_names_is_sent_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-the-environment")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-of-the-environment")
    with scripted(lambda _: Answer({"data": []})) as provider:
        for fields in ({}, {"organization": "acme", "project": "night"}):
            backend = open_backend("cloud", hosted(base_url=provider.base_url, **fields), {"THE_KEY": "sk-1\n"})
            account = backend.account()
            backend.close()
            assert account.endswith("/night") is bool(fields)
    sent = [(a.headers.get("openai-organization"), a.headers.get("openai-project")) for a in provider.asked]
    assert sent == [(None, None), ("acme", "night")]
    assert {asked.headers["authorization"] for asked in provider.asked} == {"Bearer sk-1"}


@pytest.mark.parametrize("name", ["organization", "project"])
@pytest.mark.parametrize("value", ["\u00fcber", "a\nb", "two words", ""])
def test_an_organization_that_no_header_can_carry_is_a_mistake_in_orch_toml(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=f"{name}\\n.*is not an id such as org-1a2b"):
        hosted(**{name: value})


def test_anthropic_is_asked_with_the_key_that_orch_toml_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "of-the-environment")
    with scripted(lambda _: Answer({"data": [], "has_more": False})) as provider:
        address = provider.base_url.removesuffix("/v1")
        backend = open_backend("claude", claude(base_url=address), {"THE_KEY": "sk-ant-1"})
        assert list(backend.batches()) == []
        backend.close()
    [asked] = provider.asked
    assert asked.headers["x-api-key"] == "sk-ant-1"
    assert "of-the-environment" not in " ".join(asked.headers.values())


def test_nothing_is_tried_again_behind_our_back() -> None:
    with scripted(lambda _: Answer(b"", 500, {"x-should-retry": "true", "retry-after": "0"})) as provider:
        backend = open_backend("cloud", hosted(base_url=provider.base_url), {"THE_KEY": "sk-1"})
        assert [check.ok for check in backend.check([])] == [False]
        backend.close()
    assert len(provider.asked) == 1


def test_our_own_server_is_asked_for_more_than_openai_has() -> None:
    with scripted(lambda _: Answer({"data": []})) as provider:
        backend = open_backend("orch", hosted(base_url=provider.base_url, profile="orch"), {"THE_KEY": "sk-1"})
        assert backend.account().startswith("key:")
        assert backend.appear_seconds == 1.0
        backend.close()
    assert provider.asked == []
