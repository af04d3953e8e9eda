"""Figures of a build, and the sentences that tell them."""

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

    Some requests are not sent: those `carried` over, those `cached` from answers to the same request, `twins` of sent
    requests, and `awaited` ones in flight in other jobs. `unaskable` requests lack a document that can be read and
    fits. `to_send` counts all other requests. `later` requests are made from the answers to a long document's parts.
    `input_bytes` is what goes out, without the `trimmed_tokens` removed by cleaning. Files of `unread` documents have
    not changed. `whys` counts all requests by their reason, `asks` the sent ones. `of_other_models` counts carried
    answers by their model and the model of today. `removed` documents were in the last run; `gone` names the first
    GONE of them. `ignored` counts what is not a document. `expected` is the total of documents, None if only reading
    tables can tell. `limited_to` describes the scope of a limited run.
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
        """Describes why requests are sent, compared with the last run; `saved` describes the unsent requests."""
        if self.whys.keys() == {Why.NEW} and not self.removed:
            return []  # a first run, or a job file that asks something else altogether
        told = [f"{self.asks[why]:,} {words}" for why, words in _TOLD.items() if self.asks[why]]
        return [*told, f"{number_of(self.removed, 'document')} removed"] if self.removed else told

    @property
    def counts(self) -> list[str]:
        """Describes the numbers of all requests, of requests that are not sent, and of changed ones."""
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
        """Describes, below a plan, what is not sent and why, what was not read, and answers of other models."""
        facts = {
            "requests": ", ".join(self.counts) if self.saved or self.changes else "",
            "documents": told(self.ignored.to_json()),
            "answers": self.other_models,
        }
        return [f"{name}: {words}" for name, words in facts.items() if words]

    @property
    def other_models(self) -> str:
        """Describes the answers of models that would not be asked now; "" without such answers."""
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
        """Describes the requests that are not sent, with the reason."""
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
