"""Fireworks' batch inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.backends.fireworks.settings import FireworksBackend
from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import CHAT_ONLY, MB, BatchLimits, Profile

if TYPE_CHECKING:
    from orchestrator.backends import Backend

# fireworks-ai 1.2.30 (resources/datasets.py): an upload in one call takes at most 150 MB. orch chooses a job's id, so
# it looks up an unanswered create by id, and need not search a list. Lines read back do not name their model.
PROFILE = Profile(
    "fireworks",
    limits=BatchLimits(max_bytes=150 * MB),
    provider="fireworks",
    appear_seconds=60.0,
    reads_inputs=False,
    cancels=False,
    endpoints=CHAT_ONLY,
)


class FireworksPackage(BackendPackage[FireworksBackend]):
    """Fireworks' batch inference jobs. Orch chooses their ids."""

    kinds = {"fireworks": FireworksBackend}  # noqa: RUF012

    def profile(self, settings: FireworksBackend) -> Profile:
        return PROFILE

    def open(self, settings: FireworksBackend, access: BackendAccess) -> Backend:
        from orchestrator.backends import call_limits
        from orchestrator.backends.fireworks.api import FireworksAPI, FireworksBatches
        from orchestrator.backends.fireworks.jobs import sent_line

        silent = settings.request_timeout
        client = call_limits.bearer_client(settings.base_url, access.key, silent)
        signed = call_limits.open_client(settings.base_url, {}, silent)
        api = FireworksAPI(client, signed, settings.account, access.key, silent)
        return FireworksBatches(access.name, api, PROFILE, sent=sent_line)


PACKAGE = FireworksPackage()
