"""OpenAI's verbs at Scaleway, which has no call to end a batch."""

from __future__ import annotations

from orchestrator.backends.buckets import WithBucket


class ScalewayBatches(WithBucket):
    """The verbs of a Batch API on Scaleway's calls."""

    def cancel(self, batch_id: str) -> None:
        """Raises BackendRefused for a batch that is not over."""
        self._refuse_cancel(batch_id, "Scaleway")
