"""The interface of a hosted backend's package, apart from its protocol class. See decision 21.

Importing a package must import neither an SDK nor policy tables: every start of `orch` imports all packages.
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
    """The name of a backend in orch.toml, its key, and the home, which contains its input files.

    The key is empty if the settings name none.
    """

    name: str
    key: str
    root: Path = Path("/")


class BackendPackage(ABC, Generic[Settings]):
    """One or several kinds of hosted backend. Stateless."""

    kinds: Mapping[str, type[Settings]]
    """The package's settings classes, by `kind`."""

    @abstractmethod
    def profile(self, settings: Settings) -> Profile:
        """Return the provider's profile, with changes from orch.toml. Raises UsageError."""

    @abstractmethod
    def open(self, settings: Settings, access: BackendAccess) -> Backend:
        """Open the Batch API. Sends nothing. Imports the SDK, if it uses one."""

    def recipient(self, settings: Settings) -> str:
        """Return the provider's name in the dialect tables."""
        return self.profile(settings).name

    def rules(self) -> tuple[TableRule, ...]:
        """Return the package's lines for the dialect tables, besides the lines in `policy`. Pure."""
        return ()

    def prompt_cache(self) -> CacheRules | None:
        """Return the rules of a cache that a row can fill before its batch is sent; None without such a cache."""
        return None


def package_of(settings: HostedBackend) -> BackendPackage[HostedBackend]:
    return next(package for package in _typed() if settings.kind in package.kinds)


@cache
def rules_for(recipient: str) -> tuple[TableRule, ...]:
    """Return all packages' lines for a provider. A synchronous backend may use the same provider."""
    return tuple(rule for package in _typed() for rule in package.rules() if recipient in rule.providers)


def _typed() -> tuple[BackendPackage[HostedBackend], ...]:
    return cast(tuple[BackendPackage[HostedBackend], ...], packages())
