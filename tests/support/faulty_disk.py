"""A disk that fails now and then below one folder: `tests/soak/faulty_disk.c`, loaded before a program."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cli import Orch, kill_group

SOURCE = Path(__file__).resolve().parents[1] / "soak" / "faulty_disk.c"
LONGEST_RUN = 60.0
STARTS = 4


def compiled(folder: Path) -> Path:
    """The library; needs a C compiler."""
    library = folder / "faulty_disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@dataclass(slots=True)
class FaultyDisk:
    """Starts a command again and again before a disk that fails. `broken` says what it may not have done."""

    library: Path
    home: Path
    dice: random.Random
    codes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def beset(self, orch: Orch, command: Sequence[str], env: Mapping[str, str], allowed: Sequence[int]) -> None:
        """Until a run ends with 0 or 1, a few times at most; `codes` has the exit codes, "killed" where it hung."""
        for _ in range(STARTS):
            process = orch.start(*command, env={**env, **self._environment()})
            try:
                code = process.wait(LONGEST_RUN)
            except subprocess.TimeoutExpired:
                kill_group(process)
                process.wait()
                self.codes["killed"] += 1
                continue
            self.codes[str(code)] += 1
            said = orch.output(process)
            if code not in allowed or "Traceback" in said:
                self.broken.append(f"exit {code}: {said[-3000:]}")
            if code in (0, 1):
                break

    @property
    def faults(self) -> Counter[str]:
        """Which calls failed with what."""
        if not self._log.exists():
            return Counter()
        return Counter(" ".join(line.split()[:2]) for line in self._log.read_text(errors="replace").splitlines())

    @property
    def _log(self) -> Path:
        return self.home.parent / "faults.log"

    def _environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self.library),
            "ORCH_DISK_HOME": str(self.home.resolve()),
            "ORCH_DISK_LOG": str(self._log),
            "ORCH_DISK_SEED": str(self.dice.randrange(2**32)),
            "ORCH_DISK_EVERY": str(self.dice.choice((30, 100, 300, 1000))),
            "ORCH_DISK_LASTS": str(self.dice.choice((0, 0, 5, 50))),
        }
