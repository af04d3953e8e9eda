"""Packages of hosted backends: folders of `orchestrator.backends`, and packages of other distributions.

A package of another distribution is found by its entry point in the group `orch.backends`.
"""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Protocol

from orchestrator.settings.backends import HostedBackend

log = logging.getLogger(__name__)
GROUP = "orch.backends"
# A name, since `settings` may not import the rooms above it. The folders found in this package are its backends.
_OURS = "orchestrator.backends"
_FIRST = "openai"
"""Package that is loaded first, because most providers speak its protocol."""


class HasKinds(Protocol):
    """The part of a hosted backend's package that `settings` uses."""

    @property
    def kinds(self) -> Mapping[str, type[HostedBackend]]:
        """Classes of the package's settings, by `kind`."""


@cache
def packages() -> tuple[HasKinds, ...]:
    """Return the packages of hosted backends. A broken package of another distribution is logged and left out."""
    return (*_ours(), *_others())


def _ours() -> Iterator[HasKinds]:
    folders = [one.name for one in pkgutil.iter_modules(import_module(_OURS).__path__) if one.ispkg]
    for name in sorted(folders, key=lambda name: (name != _FIRST, name)):
        yield import_module(f"{_OURS}.{name}").PACKAGE


def _others() -> Iterator[HasKinds]:
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        try:
            yield entry.load()
        except (ImportError, AttributeError) as error:
            log.warning("the package of backend %s is left out: %s", entry.name, error)


def hosted_kinds() -> dict[str, type[HostedBackend]]:
    """Return the settings class of every kind of hosted backend."""
    return {kind: settings for package in packages() for kind, settings in package.kinds.items()}
