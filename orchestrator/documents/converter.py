"""Converts formats that only LibreOffice reads into formats that orch reads, each file in a separate process.

The process has no network. It sees only the system's programs, its own file and a new profile, and cannot change
other files. Linux namespaces, made by `unshare`, isolate it. Without namespaces, nothing is converted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.documents.claimed_folder import ClaimedFolder
from orchestrator.documents.encoding import clean
from orchestrator.documents.files import io_problem
from orchestrator.documents.kinds import LEGACY, split_name
from orchestrator.documents.lines import read_all
from orchestrator.documents.office import OLE, encrypted, is_locked
from orchestrator.documents.safe_open import open_file
from orchestrator.documents.types import (
    Document,
    DocumentProblem,
    ExtractionError,
    UnreadableDocument,
    unreadable,
    unsupported,
)

if TYPE_CHECKING:
    from orchestrator.core.bounded.process import WorkerLimits
    from orchestrator.documents.files import DocumentFile

Found = Document | UnreadableDocument
WAIT_SECONDS = 0.2
_SHOWN = 300
_FIB, _LOCKED = b"\xec\xa5", 0x01
"""First bytes of a Word document's main stream, and the bit in its twelfth byte that means password protection."""
_LOCKED_SLIDES = b"\x14\0\0\0\xdf\xc4\xd1\xf3"
"""Size and token of the Current User record in a protected PowerPoint presentation ([MS-PPT] 2.3.2)."""
_SECTOR = 512
# The process gets a new root file system with the programs' folders, three devices and this conversion's folder. If
# orch runs as root, so does the process: therefore the folders are read-only, and all privileges are dropped.
_CONFINED = r"""
root=$1 folder=$2 program=$3 target=$4 name=$5 own=$6
mount -t tmpfs -o mode=755,size=1m orch "$root"
mkdir "$root/dev" "$root/tmp" "$root/conversion" "$root/proc" "$root/outside"
mount --bind "$folder" "$root/conversion"
mkdir "$root/conversion/profile"; mount --bind "$root/conversion/profile" "$root/tmp"
for part in usr bin sbin lib lib32 lib64 libx32 opt etc/alternatives etc/fonts etc/ld.so.cache etc/ld.so.conf \
    etc/ld.so.conf.d etc/libreoffice ${own#/}; do
  if [ -L "/$part" ]; then mkdir -p "$root/$(dirname "$part")"; cp -P "/$part" "$root/$part"; continue; fi
  if [ -d "/$part" ]; then mkdir -p "$root/$part"
  elif [ -e "/$part" ]; then mkdir -p "$root/$(dirname "$part")"; : > "$root/$part"
  else continue; fi
  mount --rbind "/$part" "$root/$part"
  mount -o remount,bind,ro,nosuid,nodev "$root/$part"
done
for device in null zero urandom; do : > "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
mount -t proc -o nosuid,nodev,noexec orch "$root/proc"  # of its own processes alone
cd "$root"
pivot_root . outside
umount --lazy /outside
: > /conversion/confined
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all \
  env -i HOME=/conversion/profile PATH=/usr/bin:/bin LANG=C.UTF-8 \
  "$program" --headless --norestore --nologo --nodefault -env:UserInstallation=file:///conversion/profile/user \
  --convert-to "$target" --outdir /conversion/out "/conversion/$name" < /dev/null
"""


class Converted(Struct, frozen=True):
    """The converted file, and the SHA-256 digest (hex) and size in bytes of its source."""

    path: str
    kind: str
    digest: str
    size: int


class Converter:
    """Converts several files in parallel, in a temporary folder. It calls `check` while it waits. For use by one
    thread.
    """

    def __init__(self, program: str, most: int, limits: WorkerLimits, check: Callable[[], None]) -> None:
        self._program = shutil.which(program)
        self._called = program
        self._limits = limits
        self._check = check
        self._folder = ClaimedFolder()
        self._pool = ThreadPoolExecutor(most, "orch-convert")
        self._number = 0
        self._is_closed = threading.Event()

    def close(self) -> None:
        self._is_closed.set()
        self._pool.shutdown(cancel_futures=True)
        self._folder.close()

    def submit(self, file: DocumentFile, data: bytes | None = None) -> Future[Converted]:
        """Start the conversion of a file. `data` replaces the file's content, if given."""
        self._number += 1
        return self._pool.submit(self._convert, file, data, self._folder.path / f"{self._number}")

    def documents(
        self, file: DocumentFile, begun: Future[Converted], read: Callable[[DocumentFile], Iterator[Found]]
    ) -> Iterator[Found]:
        """Yield the results of `read` for the converted file, under the original's key. If the conversion fails,
        yield its problem.
        """
        with self._result(begun) as made:
            if isinstance(made, ExtractionError):
                yield UnreadableDocument(
                    file.key, file.relative.rpartition("/")[2], made.code, made.message, made.size
                )
                return
            for found in read(file._replace(path=made.path, kind=made.kind, within=None)):
                if isinstance(found, Document):
                    fields = {**found.fields, "size": made.size}
                    found = replace(found, digest=made.digest, size=made.size, fields=fields)
                yield found

    @contextmanager
    def _result(self, begun: Future[Converted]) -> Iterator[Converted | ExtractionError]:
        while True:
            self._check()
            try:
                found: Converted | ExtractionError = begun.result(WAIT_SECONDS)
            except TimeoutError:
                continue
            except ExtractionError as error:
                found = error
            except OSError as error:
                found = io_problem(error)
            break
        try:
            yield found
        finally:
            if isinstance(found, Converted):
                shutil.rmtree(Path(found.path).parents[1], ignore_errors=True)

    def _convert(self, file: DocumentFile, data: bytes | None, folder: Path) -> Converted:
        if self._program is None:
            raise _unsupported(f"there is no program {self._called}")
        if data is None:
            data = read_all(open_file, file.path, file.within, file.max_bytes)
        if _needs_password(data):
            raise encrypted()
        ending = split_name(file.relative)[1].lower()
        kind, target = LEGACY[ending]
        (folder / "work").mkdir(parents=True)
        (folder / "root").mkdir()
        (folder / "work" / f"document{ending}").write_bytes(data)
        try:
            told = self._run(folder, f"document{ending}", target)
            out = folder / "work" / "out" / f"document.{target}"
            if not (folder / "work" / "confined").exists():
                raise _unsupported(f"it cannot be confined on this machine: {told}")
            if not out.is_file() or out.is_symlink():
                raise unreadable(f"LibreOffice could not read it ({told}); open and save it there, or exclude it.")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Converted(str(out), kind, hashlib.sha256(data).hexdigest(), len(data))

    def _run(self, folder: Path, name: str, target: str) -> str:
        """Run the conversion and return the last line of its output. Raises ExtractionError (time_limit,
        unsupported).
        """
        limits = self._limits
        assert self._program is not None
        program = os.path.realpath(self._program)
        command: list[str | Path] = [
            "setpriv", "--pdeathsig", "KILL",  # dies with this process; `unshare` passes that on
            "prlimit", f"--cpu={limits.seconds}", f"--data={limits.memory}", f"--fsize={limits.value}", "--core=0",
            "unshare", "--user", "--map-root-user", "--net", "--ipc", "--pid", "--mount", "--fork", "--kill-child",
            "sh", "-eu", "-c", _CONFINED, "sh", folder / "root", folder / "work", program, target, name,
            os.path.dirname(os.path.dirname(program)),
        ]  # fmt: skip
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise _unsupported(f"{command[0]} cannot be started ({error.strerror})") from error
        return self._said(process)

    def _said(self, process: subprocess.Popen[str]) -> str:
        waited = 0.0
        while True:
            try:
                said, _ = process.communicate(timeout=WAIT_SECONDS)
                break
            except subprocess.TimeoutExpired:
                waited += WAIT_SECONDS
                if waited > self._limits.patience or self._is_closed.is_set():
                    with suppress(ProcessLookupError):
                        process.kill()
                    process.communicate()
                    raise ExtractionError(
                        DocumentProblem.TIME_LIMIT,
                        f"LibreOffice takes longer than {self._limits.patience:,.0f} seconds for it; exclude it.",
                    ) from None
        lines = [line for line in clean(said).splitlines() if line.strip() and "javaldx" not in line]
        return lines[-1].strip()[:_SHOWN] if lines else f"it ended with {process.returncode}"


def _needs_password(data: bytes) -> bool:
    if not data.startswith(OLE):
        return False
    if is_locked(data) or "EncryptedSummary".encode("utf-16-le") in data or _LOCKED_SLIDES in data:
        return True
    starts = (data[at : at + 12] for at in range(_SECTOR, len(data), _SECTOR))
    return any(start.startswith(_FIB) and len(start) == 12 and start[11] & _LOCKED for start in starts)


def _unsupported(why: str) -> ExtractionError:
    return unsupported(f"LibreOffice would read it, but {why}; save it as a newer format, or exclude it.")
