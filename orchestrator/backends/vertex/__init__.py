"""Vertex AI's batch inference of Gemini models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import CHAT_ONLY, GB, BatchLimits, Profile
from orchestrator.backends.vertex.settings import VertexBackend

if TYPE_CHECKING:
    from orchestrator.backends import Backend

# Google's guide: 200,000 requests and 1 GB a job, up to 72 hours in the queue and 24 hours of work. A cached token
# costs the same inside and outside a batch: the cache's discount replaces the batch's.
PROFILE = Profile(
    "vertex",
    windows=("96h",),
    limits=BatchLimits(max_rows=200_000, max_bytes=GB),
    provider="google",
    endpoints=CHAT_ONLY,
    stacks=False,
    names_rows=False,
    one_file=True,
)


class VertexPackage(BackendPackage[VertexBackend]):
    """Vertex AI's batch jobs, which read and write files in a bucket."""

    kinds = {"vertex": VertexBackend}  # noqa: RUF012

    def profile(self, settings: VertexBackend) -> Profile:
        return PROFILE

    def open(self, settings: VertexBackend, access: BackendAccess) -> Backend:
        from orchestrator.backends.vertex.batches import VertexBatches
        from orchestrator.backends.vertex.clients import api_of

        return VertexBatches(access.name, api_of(settings, access), PROFILE, settings)


PACKAGE = VertexPackage()
