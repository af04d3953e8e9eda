"""Batch operations at Anthropic, which also log omitted fields and look up each model by name."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.backends import DoctorCheck, inline_rows, lenient
from orchestrator.backends.anthropic.api import AnthropicAPI, of_answer
from orchestrator.backends.anthropic.messages import translate
from orchestrator.backends.batches import GONE
from orchestrator.backends.inline_batches import InlineBatches
from orchestrator.backends.profiles import Profile
from orchestrator.core.counts import number_of
from orchestrator.core.errors import BackendRefused, OrchError
from orchestrator.policy.preflight import DirectAnswer, body_of

log = logging.getLogger(__name__)


class AnthropicBatches(InlineBatches):
    """The batch operations of Anthropic's API. `max_tokens` applies to rows that set none."""

    _api: AnthropicAPI
    _of_answer = staticmethod(of_answer)

    def __init__(
        self, name: str, api: AnthropicAPI, profile: Profile, max_tokens: int, root: Path = inline_rows.ANYWHERE
    ) -> None:
        super().__init__(name, api, profile, lambda body: translate(body, max_tokens)[0], "params", root)
        self._max_tokens = max_tokens

    def account(self) -> str:
        return f"key:{sha256(self._api.api_key.encode()).hexdigest()[:12]}"

    def upload(self, path: Path, name: str) -> str:
        left_out = Counter[str]()

        def counted(body: Mapping[str, Any]) -> dict[str, Any]:
            params, fields = translate(body, self._max_tokens)
            left_out.update(fields)
            return params

        file_id = self._upload(path, name, counted)
        if left_out:
            told = ", ".join(f"{field} ({number_of(rows, 'row')})" for field, rows in sorted(left_out.items()))
            log.warning("%s: %s: left out, as Anthropic has no counterpart: %s", self._name, name, told)
        return file_id

    def ask(self, endpoint: str, line: bytes) -> DirectAnswer:
        return self._ask(endpoint, msgspec.json.encode(self._translate(body_of(line))))

    def lists_model(self, model: str) -> bool | None:
        try:
            self._display_name(model)
        except BackendRefused as refusal:
            return False if refusal.status in GONE else None
        except OrchError:
            return None
        return True

    def _display_name(self, model: str) -> object:
        """Request this model alone, because the list lacks aliases of latest versions."""
        with self._translated(f"look {model} up"):
            return lenient.mapping(self._api.model(model).json()).get("display_name")

    def _check_models(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        for model in models:
            try:
                yield DoctorCheck(f"model {model}", True, f"is there: {self._display_name(model)}")
            except OrchError as error:
                yield DoctorCheck(f"model {model}", False, str(error))
