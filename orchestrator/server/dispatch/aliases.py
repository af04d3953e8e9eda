"""Other names under which clients may ask for an upstream's model. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from orchestrator.core.answers import TokenCounts
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.json_decoders import json_decoder
from orchestrator.server.dispatch.body_changes import DEFAULT_MODEL

ANY = "*"
"""As a name: any name that no upstream serves. As a model: the upstream's only model."""
_decode = json_decoder(dict[str, msgspec.Raw]).decode


def read_alias(text: str) -> tuple[str, str]:
    """Parse `NAME=MODEL` into name and model; a bare `*` is `*=*`. Raises ValueError."""
    name, equals, model = (part.strip() for part in text.partition("="))
    if not equals and name == ANY:
        return ANY, ANY
    if not name or not model:
        raise ValueError(f"{text!r} is not NAME=MODEL, such as gpt-4o-mini=llama, or *")
    return name, model


class Aliases:
    """The aliases of one server. At an upstream that itself serves a name, the name is not an alias."""

    def __init__(self, aliases: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        self._models = dict(aliases)

    def __bool__(self) -> bool:
        return bool(self._models)

    def model_of(self, name: str | None, served: Collection[str]) -> str | None:
        """Return the model that a name stands for at an upstream with the models `served`; None if the name is not an
        alias.
        """
        if name is None or not self._models or name in served:
            return None
        model = self._models.get(name, self._models.get(ANY))
        if model != ANY:
            return model
        return next(iter(served)) if len(served) == 1 else None

    def names(self, served: Collection[str]) -> dict[str, str]:
        """Return the aliases that have a model at an upstream with the models `served`."""
        found = {name: self.model_of(name, served) for name in self._models if name != ANY}
        return {name: model for name, model in found.items() if model is not None and model in served}


class ServedModels:
    """The models of one upstream, under their own names and the server's aliases."""

    def __init__(self, models: Sequence[str], aliases: Aliases | None) -> None:
        self._aliases = aliases or Aliases()
        self.learn(models)

    def learn(self, models: Sequence[str], window: int = 0) -> None:
        """Replace the models with the upstream's current list. `window` is its largest context window in tokens."""
        self.models = list(models)
        self._names = frozenset(models)
        self._window = window

    def is_full(self, tokens: TokenCounts | None) -> bool:
        """True if a prompt and its answer fill the whole context window."""
        return tokens is not None and tokens.output > 0 and 0 < self._window <= tokens.input + tokens.output

    def may_be(self, model: str | None) -> bool:
        """True if the upstream may have a model: the model is in its list, or its list is empty."""
        if model in self._names or not self.models or model is None or model == DEFAULT_MODEL:
            return True
        return self.has(model)

    def has(self, model: str) -> bool:
        """True if the upstream lists this model, or the model that this alias stands for."""
        return model in self._names or self._aliases.model_of(model, self._names) in self._names

    def sent_for(self, model: str | None) -> str | None:
        """Return the name to send in place of a requested model, or None to send the requested name."""
        if model in self._names:
            return None
        if model == DEFAULT_MODEL:
            return self.models[0] if self.models else None
        return self._aliases.model_of(model, self._names)


def renamed(body: bytes, model: str) -> bytes:
    """Return a request's body with its model replaced. Return it unchanged if it is not a JSON object."""
    try:
        fields = _decode(body)
    except JSON_ERRORS:
        return body
    return msgspec.json.encode({**fields, "model": model})
