"""Cohere's Batch API."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.backends.cohere.settings import CohereBackend
from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import CHAT_ONLY, GB, BatchLimits, Profile
from orchestrator.core.errors import UsageError
from orchestrator.core.extras import install_line

if TYPE_CHECKING:
    from orchestrator.backends import Backend
    from orchestrator.policy.dialect.rules import TableRule

# Cohere's guide: a dataset has 1.5 GB at most, and is deleted after 30 days. The guide states no row limit, window or
# discount. The synchronous API takes requests in another format than batches do.
PROFILE = Profile(
    "cohere",
    limits=BatchLimits(max_bytes=GB),
    provider="cohere",
    discount=None,
    overruns=True,
    endpoints=CHAT_ONLY,
    asks_directly=False,
    reads_inputs=False,
    one_file=True,
)


class CoherePackage(BackendPackage[CohereBackend]):
    """Cohere's Batch API, whose batches read datasets and write datasets of Avro files."""

    kinds = {"cohere": CohereBackend}  # noqa: RUF012

    def profile(self, settings: CohereBackend) -> Profile:
        return replace(PROFILE, discount=settings.discount)

    def open(self, settings: CohereBackend, access: BackendAccess) -> Backend:
        if find_spec("fastavro") is None:
            hint = install_line("cohere")
            raise UsageError(f"backend {access.name} needs the extra `cohere`", hint=hint)

        from orchestrator.backends import call_limits
        from orchestrator.backends.cohere.api import CohereAPI, CohereBatches
        from orchestrator.backends.cohere.requests import translate

        silent = settings.request_timeout
        client = call_limits.bearer_client(settings.base_url, access.key, silent)
        signed = call_limits.open_client(settings.base_url, {}, silent)
        api = CohereAPI(client, signed, access.key, silent)
        return CohereBatches(access.name, api, self.profile(settings), translate)

    def rules(self) -> tuple[TableRule, ...]:
        from orchestrator.backends.cohere.dialect import COHERE_RULES

        return COHERE_RULES


PACKAGE = CoherePackage()
