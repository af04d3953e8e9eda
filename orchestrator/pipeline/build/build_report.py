"""Figures of a build, and the sentences that state them."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field

from orchestrator.core.counts import number_of
from orchestrator.core.model import Why
from orchestrator.documents.ignored import Ignored, told

GONE = 1000
_TOLD = {
    Why.NEW: "new",
    Why.DOCUMENT: "of changed documents",
    Why.PROMPT: "of a changed prompt",
    Why.PARAMETERS: "of changed parameters",
    Why.MODEL: "of another model",
    Why.READER: "read in another way",
    Why.FAILED: "failed before",
    Why.UNANSWERED: "without an answer so far",
    Why.ASKED: "asked for",
}


class BuildReport(Struct):
    """Figures of a build: documents, requests, and problems with documents.

    Requests that are not sent:

    - `carried`: have an answer of an earlier run
    - `cached`: have an answer of another job
    - `twins`: equal a sent request
    - `awaited`: are in flight in another job
    - `unaskable`: have no readable, fitting document

    `to_send` counts all other requests. `later` requests will be made from the answers to a long document's parts.
    `input_bytes` is the size of sent requests. `trimmed_tokens` is the number of tokens that cleaning removed.
    `unread` documents are in unchanged files.

    `whys` counts all requests by their reason, and `asks` counts the sent requests. `of_other_models` counts carried
    answers by their model and the model that would be asked now. `removed` documents were in the last run; `gone`
    names the first GONE. `ignored` counts files that are not documents. `expected` is the total number of documents,
    or None until all tables are read. `limited_to` describes the scope of a limited run.
    """

    documents: int = 0
    expected: int | None = None
    unread: int = 0
    requests: int = 0
    carried: int = 0
    cached: int = 0
    twins: int = 0
    awaited: int = 0
    unaskable: int = 0
    to_send: int = 0
    input_bytes: int = 0
    trimmed_tokens: int = 0
    later: int = 0
    whys: Counter[Why] = field(default_factory=Counter)
    asks: Counter[Why] = field(default_factory=Counter)
    of_other_models: Counter[tuple[str, str]] = field(default_factory=Counter)
    removed: int = 0
    limited_to: str | None = None
    gone: list[str] = field(default_factory=list)
    ignored: Ignored = field(default_factory=Ignored)
    problems: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def changes(self) -> list[str]:
        """Reasons for the sent requests, compared with the last run."""
        if self.whys.keys() == {Why.NEW} and not self.removed:
            return []  # the first run, or a job file whose requests are all new
        told = [f"{self.asks[why]:,} {words}" for why, words in _TOLD.items() if self.asks[why]]
        return [*told, f"{number_of(self.removed, 'document')} removed"] if self.removed else told

    @property
    def counts(self) -> list[str]:
        """Numbers of all requests, of unsent requests with the reason, and of sent requests with the reason."""
        number = f"{number_of(self.requests, 'request')} of {number_of(self.documents, 'document')}"
        return [number, *self.saved, *self.changes]

    def __str__(self) -> str:
        parts = self.counts
        parts += [] if self.limited_to is None else [f"limited to {self.limited_to}"]
        parts += [self.other_models] if self.of_other_models else []
        ignored = told(self.ignored.to_json())
        return ", ".join(parts) + (f"; {ignored}" if ignored else "")

    @property
    def notes(self) -> list[str]:
        """Notes below a plan: unsent requests, ignored files, and answers of other models."""
        facts = {
            "requests": ", ".join(self.counts) if self.saved or self.changes else "",
            "documents": told(self.ignored.to_json()),
            "answers": self.other_models,
        }
        return [f"{name}: {words}" for name, words in facts.items() if words]

    @property
    def other_models(self) -> str:
        """Sentence about answers of models that would not be asked now; "" without such answers."""
        return "; ".join(
            f"{number_of(number, 'answer')} {'is' if number == 1 else 'are'} from {old}: `--reask` asks {new}"
            for (old, new), number in sorted(self.of_other_models.items())
        )

    def other_models_json(self) -> list[dict[str, str | int]]:
        """Return the answers of other models, in the stable form of docs/reference/json.md."""
        return [
            {"answered_by": old, "asks": new, "requests": number}
            for (old, new), number in sorted(self.of_other_models.items())
        ]

    @property
    def saved(self) -> list[str]:
        """Numbers of unsent requests, with the reason."""
        told = (
            (self.carried, "unchanged since an earlier run"),
            (self.cached, "with an answer to the same request"),
            (self.twins, "the same as another row"),
            (self.awaited, "under way in another job"),
            (self.unaskable, "that cannot be asked"),
            (self.trimmed_tokens, "tokens removed by cleaning"),
            (self.later, "created later from the answers to parts, not included in the forecast"),
        )
        return [f"{number:,} {words}" for number, words in told if number]
