"""Paths of the engine, its models and its logs on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.steps import say


class EngineDir(Struct, frozen=True):
    """The folder with all files of the engine. Deleting it removes the engine completely."""

    root: Path

    @classmethod
    def at(cls, path: str | Path) -> EngineDir:
        # Absolute, because the engine has its own working directory.
        return cls(Path(path).absolute())

    @property
    def venv(self) -> Path:
        return self.root / "venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def stamp(self) -> Path:
        """A file inside the environment that is written last. If it is missing, the environment is incomplete."""
        return self.venv / "orch-installed"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that point to this engine's programs and caches. PATH extends the PATH of
        `environ`.
        """
        path = f"{self.venv / 'bin'}{os.pathsep}{environ.get('PATH', os.defpath)}"
        return {"VLLM_CACHE_ROOT": str(self.cache), "VLLM_CONFIG_ROOT": str(self.cache / "config"), "PATH": path}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Allow one installation or conversion at a time. The lock is released when the process that holds it
        ends.
        """
        import fcntl  # missing on Windows, which the platform check has already refused

        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another process that is working in {self.root}")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def require_space(self, needed: int, what: str) -> None:
        """Raise EngineUnavailable unless `needed` bytes are free on the disk of this folder."""
        there = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if free < needed:
            raise EngineUnavailable(
                f"{what} needs about {needed / 1e9:.1f} GB of disk, and {there} has {free / 1e9:.1f} GB free"
            )
