"""The interface of a hosted backend's package, except its protocol class. See decision 21.

Every start of `orch` imports all packages. So importing a package must import neither an SDK nor policy tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from msgspec import Struct

from orchestrator.settings.backend_packages import packages
from orchestrator.settings.backends import HostedBackend

if TYPE_CHECKING:
    from orchestrator.backends import Backend
    from orchestrator.backends.profiles import Profile
    from orchestrator.policy.dialect.rules import TableRule
    from orchestrator.policy.prompt_cache import CacheRules

Settings = TypeVar("Settings", bound=HostedBackend)


class BackendAccess(Struct, frozen=True):
    """The name of a backend in orch.toml, its key, and the home that contains its input files.

    The key is empty if the settings name no key.
    """

    name: str
    key: str
    root: Path = Path("/")


class BackendPackage(ABC, Generic[Settings]):
    """A package for one or more kinds of hosted backend. Stateless."""

    kinds: Mapping[str, type[Settings]]
    """The package's settings classes, by `kind`."""

    @abstractmethod
    def profile(self, settings: Settings) -> Profile:
        """Return the provider's profile, with overrides from orch.toml. Raises UsageError."""

    @abstractmethod
    def open(self, settings: Settings, access: BackendAccess) -> Backend:
        """Open the Batch API without sending anything. Imports the SDK if the backend uses one."""

    def recipient(self, settings: Settings) -> str:
        """Return the provider's name in the dialect tables."""
        return self.profile(settings).name

    def rules(self) -> tuple[TableRule, ...]:
        """Return the package's rules for the dialect tables, in addition to the rules in `policy`. Pure."""
        return ()

    def prompt_cache(self) -> CacheRules | None:
        """Return the rules of a prompt cache that a row can fill before its batch is sent.

        Returns None if the provider has no such cache.
        """
        return None


def package_of(settings: HostedBackend) -> BackendPackage[HostedBackend]:
    return next(package for package in _typed() if settings.kind in package.kinds)


@cache
def rules_for(recipient: str) -> tuple[TableRule, ...]:
    """Return the dialect rules of all packages for a provider. A synchronous backend may use the same provider."""
    return tuple(rule for package in _typed() for rule in package.rules() if recipient in rule.providers)


def _typed() -> tuple[BackendPackage[HostedBackend], ...]:
    return cast(tuple[BackendPackage[HostedBackend], ...], packages())
