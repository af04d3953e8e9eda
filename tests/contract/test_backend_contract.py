"""The contract of backends, for each kind: before the emulated providers, and before our own server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import count
from pathlib import Path

import pytest

from orchestrator.backends import Backend
from orchestrator.backends.anthropic import PROFILE as CLAUDE
from orchestrator.backends.anthropic.batches import AnthropicBatches
from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.bedrock import PACKAGE as BEDROCK
from orchestrator.backends.cohere import PACKAGE as COHERE
from orchestrator.backends.cohere.settings import CohereBackend
from orchestrator.backends.fireworks import PACKAGE as FIREWORKS
from orchestrator.backends.fireworks.settings import FireworksBackend
from orchestrator.backends.gemini import PACKAGE as GEMINI
from orchestrator.backends.gemini.settings import GeminiBackend
from orchestrator.backends.mistral import PACKAGE as MISTRAL
from orchestrator.backends.mistral.settings import MistralBackend
from orchestrator.backends.openai import PACKAGE as OPENAI
from orchestrator.backends.openai.profiles import PROFILES
from orchestrator.backends.openai.settings import OpenAIBackend
from orchestrator.backends.openai_http import HttpAPI, over_unix_socket
from orchestrator.backends.openrouter import PACKAGE as OPENROUTER
from orchestrator.backends.openrouter.settings import OpenRouterBackend
from orchestrator.backends.package import BackendAccess
from orchestrator.backends.scaleway import PACKAGE as SCALEWAY
from orchestrator.backends.scaleway.settings import ScalewayBackend
from orchestrator.backends.together import PACKAGE as TOGETHER
from orchestrator.backends.together.settings import TogetherBackend
from orchestrator.backends.vertex import PACKAGE as VERTEX
from orchestrator.backends.xai import PACKAGE as XAI
from orchestrator.backends.xai.settings import XaiBackend
from orchestrator.core.clock import now
from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from orchestrator.testing import BackendContract, PaidOnceContract
from tests.emulator.client import Emulator
from tests.support.aws import aws_environment, bedrock_settings
from tests.support.google import vertex_settings
from tests.support.plain_http import for_anthropic, with_bearer
from tests.support.process import upstreams, wait_until
from tests.support.scaleway import scaleway_told

HALF_A_DAY = 12 * 3600.0
NOVA = "amazon.nova-micro-v1:0"
_keys = count(1)
Opening = Callable[[Emulator, str], Backend]


def _openai(profile: str) -> Opening:
    def opened(emulator: Emulator, key: str) -> Backend:
        url = emulator.url_azure if profile == "azure" else emulator.url_openai
        return ApiBatches("it", HttpAPI(with_bearer(url, key), key), PROFILES[profile])

    return opened


def _compatible(profile: str) -> Opening:
    def opened(emulator: Emulator, key: str) -> Backend:
        settings = OpenAIBackend(kind="openai", profile=profile, base_url=emulator.url_of(profile), api_key_env="K")
        return OPENAI.open(settings, BackendAccess("it", key))

    return opened


def _anthropic(emulator: Emulator, key: str) -> Backend:
    return AnthropicBatches("it", for_anthropic(emulator.url_anthropic, key), CLAUDE, 1000)


def _mistral(emulator: Emulator, key: str) -> Backend:
    settings = MistralBackend(kind="mistral", base_url=emulator.url_of("mistral"), api_key_env="K")
    return MISTRAL.open(settings, BackendAccess("it", key))


def _fireworks(emulator: Emulator, key: str) -> Backend:
    settings = FireworksBackend(kind="fireworks", base_url=emulator.url_of("fireworks"), account="a", api_key_env="K")
    return FIREWORKS.open(settings, BackendAccess("it", key))


def _cohere(emulator: Emulator, key: str) -> Backend:
    settings = CohereBackend(kind="cohere", base_url=emulator.url_of("cohere"), api_key_env="K")
    return COHERE.open(settings, BackendAccess("it", key))


def _together(emulator: Emulator, key: str) -> Backend:
    settings = TogetherBackend(kind="together", base_url=emulator.url_of("together"), api_key_env="K")
    return TOGETHER.open(settings, BackendAccess("it", key))


def _gemini(emulator: Emulator, key: str) -> Backend:
    settings = GeminiBackend(kind="gemini", base_url=emulator.url_of("gemini"), api_key_env="K")
    return GEMINI.open(settings, BackendAccess("it", key))


def _xai(emulator: Emulator, key: str) -> Backend:
    settings = XaiBackend(kind="xai", base_url=emulator.url_of("xai"), api_key_env="K")
    return XAI.open(settings, BackendAccess("it", key))


def _openrouter(emulator: Emulator, key: str) -> Backend:
    settings = OpenRouterBackend(kind="openrouter", base_url=emulator.url_of("openrouter"), api_key_env="K")
    return OPENROUTER.open(settings, BackendAccess("it", key))


def _bedrock(emulator: Emulator, key: str) -> Backend:
    settings = bedrock_settings(emulator.url_of("bedrock"), key, limits={"min_rows": 1})
    return BEDROCK.open(settings, BackendAccess("it", ""))


def _scaleway(emulator: Emulator, key: str) -> Backend:
    settings = ScalewayBackend.model_validate(scaleway_told(emulator.url_of("scaleway"), key, api_key_env="K"))
    return SCALEWAY.open(settings, BackendAccess("it", key))


def _vertex(emulator: Emulator, key: str) -> Backend:
    settings = vertex_settings(emulator.url_of("vertex"), key, api_key_env="K")
    return VERTEX.open(settings, BackendAccess("it", key))


class EmulatedDesk:
    """A backend with a new account at the emulated provider, whose clock stands still."""

    def __init__(self, emulator: Emulator, opened: Opening, model: str, folder: Path) -> None:
        self.emulator = emulator
        self.key = f"sk-contract-{next(_keys)}"
        self.model = model
        self.folder = folder
        self.backend = opened(emulator, self.key)

    def now(self) -> datetime:
        return self.emulator.clock.now()

    def finish(self, batch_id: str) -> None:
        self.emulator.clock.advance(HALF_A_DAY)

    def lose_next_create(self) -> None:
        self.emulator.script({"do": "cut_after", "match": {"verb": "create"}})


class OwnDesk:
    """Our own server, on its socket."""

    key = "no-key-on-a-socket"
    model = "test-model"

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.backend = backend
        self.folder = folder

    def now(self) -> datetime:
        return now()

    def finish(self, batch_id: str) -> None:
        def is_final() -> bool:
            found = self.backend.retrieve(batch_id)
            return found is not None and found.status.is_final

        wait_until(is_final)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("provider")) as running:
        running.settings(
            models=["gpt-4.1-mini", "claude-sonnet-5-5", "mistral-small-latest", "gemini-3.8-flash", NOVA, "grok-4.3"]
        )
        running.settings(min_rows=1)
        yield running


OPENED: dict[str, tuple[Opening, str]] = {
    "openai": (_openai("openai"), "gpt-4.1-mini"),
    "groq": (_openai("groq"), "gpt-4.1-mini"),
    "zhipu": (_compatible("zhipu"), "gpt-4.1-mini"),
    "siliconflow": (_compatible("siliconflow"), "gpt-4.1-mini"),
    "anthropic": (_anthropic, "claude-sonnet-5-5"),
    "mistral": (_mistral, "mistral-small-latest"),
    "fireworks": (_fireworks, "gpt-4.1-mini"),
    "cohere": (_cohere, "gpt-4.1-mini"),
    "together": (_together, "gpt-4.1-mini"),
    "gemini": (_gemini, "gemini-3.8-flash"),
    "bedrock": (_bedrock, NOVA),
    "scaleway": (_scaleway, "gpt-4.1-mini"),
    "vertex": (_vertex, "gemini-3.8-flash"),
    "xai": (_xai, "grok-4.3"),
    "openrouter": (_openrouter, "gpt-4.1-mini"),
}


class TestEmulated(BackendContract, PaidOnceContract):
    """The kinds of hosted backends."""

    @pytest.fixture(params=OPENED)
    def desk(
        self,
        request: pytest.FixtureRequest,
        emulator: Emulator,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[EmulatedDesk]:
        emulator.clear()
        desk = EmulatedDesk(emulator, *OPENED[request.param], tmp_path)
        for name, value in aws_environment(desk.key, tmp_path).items():
            monkeypatch.setenv(name, value)
        yield desk
        desk.backend.close()


class TestOwn(BackendContract):
    """Our own server."""

    @pytest.fixture
    def desk(self, tmp_path: Path) -> Iterator[OwnDesk]:
        with upstreams(tmp_path) as make:
            settings = Settings(upstreams=(make(model=["test-model"]).base_url,), retry_delay=0.02)
            with ServerThread(tmp_path, settings) as server:
                folder = tmp_path / "desk"
                folder.mkdir()
                backend = ApiBatches("it", over_unix_socket(server.socket), PROFILES["orch"])
                # It asks its upstream for models once it runs.
                wait_until(lambda: backend.lists_model("test-model"))
                yield OwnDesk(backend, folder)
                backend.close()
