"""The model that `orch init FOLDER` proposes, from a server's list or from existing settings."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from orchestrator.settings.backends import Backend

ANSWER_SECONDS = 2.0
_NO_CHAT = re.compile(r"embed|rerank|whisper|\b(all-minilm|bge|gte|e5|tts)\b", re.IGNORECASE)
"""Pattern for names of models that cannot chat. Ollama and LM Studio list these together with chat models."""
_DEFAULT = "default}              # `default`: the server's own model"


def _section(lines: str) -> str:
    return f"models:\n  small: {{{lines}\n"


_OTHERS = "  #small: {local: default, openai: gpt-5-nano}\n"


class ProposedModel(Struct, frozen=True):
    """The model alias that the tasks use, and the job file's section about models.

    `missing` is what the user must set before the job can run; None if nothing is missing.
    """

    alias: str = "small"
    section: str = _section(f"local: {_DEFAULT}") + _OTHERS
    missing: str | None = None


def model_at(upstream: str) -> ProposedModel:
    """Return the first chat model that a server lists. If it lists none, the result says what to set."""
    models = _models_at(upstream)
    if models:
        return ProposedModel(section=_section(_named("local", models)) + _OTHERS)
    why = "does not answer" if models is None else "lists no models"
    return ProposedModel(missing=f"{upstream} {why}: set your server in orch.toml and its model in job.yaml")


def model_of_settings(folder: Path) -> ProposedModel:
    """Return a model from the orch.toml in a folder. Raises InputError if the orch.toml has a mistake."""
    from orchestrator.settings.backends import FleetBackend, LocalBackend
    from orchestrator.settings.config import load
    from orchestrator.settings.discovery import locate

    config = load(locate({}, folder.absolute()))
    if config.models:
        listed = ", ".join(config.models)
        alias = "small" if "small" in config.models else next(iter(config.models))
        return ProposedModel(alias, f"# The models are those of orch.toml: {listed}\n")
    if not config.backends:
        return ProposedModel(missing="add a backend to orch.toml")
    # Prefer the user's own backend: documents stay there, and tokens cost nothing.
    ours = [name for name, one in config.backends.items() if isinstance(one, (FleetBackend, LocalBackend))]
    name = next(iter(ours or config.backends))
    return _model_at_backend(name, config.backends[name])


def _model_at_backend(name: str, backend: Backend) -> ProposedModel:
    from orchestrator.settings.backends import FleetBackend, LocalBackend

    if isinstance(backend, FleetBackend):
        return ProposedModel(section=_section(_named(name, list(backend.model_names))))
    if backend.kind == "openai":
        return ProposedModel(section=_section(_named(name, ["gpt-5-nano"])))
    if not isinstance(backend, LocalBackend):
        unset = f"{plain_yaml(name)}: MODEL}}             # its name at the provider"
        return ProposedModel(section=_section(unset), missing="set the model in job.yaml")
    upstream = backend.upstreams[0]
    if models := _models_at(upstream, os.environ.get(backend.api_key_env or "")):
        return ProposedModel(section=_section(_named(name, models)))
    why = "does not answer" if models is None else "lists no models"
    return ProposedModel(
        section=_section(f"{plain_yaml(name)}: {_DEFAULT}"), missing=f"{upstream} {why}: start your server"
    )


def _named(backend: str, models: list[str]) -> str:
    others = f"   # it also has {', '.join(models[1:4])}" if len(models) > 1 else ""
    return f"{plain_yaml(backend)}: {plain_yaml(models[0])}}}{others}"


def _models_at(upstream: str, key: str | None = None) -> list[str] | None:
    """Return the models that a server lists, chat models first; None without an answer within two seconds."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    request = Request(f"{upstream}/models", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urlopen(request, timeout=ANSWER_SECONDS) as answer:
            listed = json.load(answer)["data"]
        return sorted((str(one["id"]) for one in listed), key=lambda name: bool(_NO_CHAT.search(name)))
    except (HTTPError, ValueError, KeyError, TypeError):
        return []
    except (OSError, HTTPException):
        return None


def plain_yaml(value: object) -> str:
    """Return a value as one line of YAML: a plain word if that is safe, otherwise JSON."""
    if (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", value)
        and value not in ("true", "false", "null")
    ):
        return value
    return json.dumps(value, ensure_ascii=False)
