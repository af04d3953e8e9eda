"""PDF, DOCX and HTML read by as many worker processes as there are cores, against the same on one core.

Each pass is a process of its own that may use one core, or all of them. Rounds are interleaved, and the quickest pass
of each is told, as other work on the machine only ever makes one slower. Where there is much of that, the clock says
little; the CPU of one core's pass against that of the busiest process among several says how much quicker it is on
cores that are free: the others are done by then. Then 10,000 PDFs of three pages are read once, on all cores: which
part of the time the reading processes are busy.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.serving import Unavailable, say
from orchestrator import documents
from orchestrator.documents import Readers, UnreadableDocument
from orchestrator.settings.job_spec import DocumentSource

ROUNDS = 7
FILES, PAGES = 60, 30
MANY, FEW_PAGES = 10_000, 3
GOAL = 1.8
CHILD = "--child"
SENTENCE = "The licensee shall not transfer, sublicense or assign its rights under clause {number} of this agreement."


def main() -> None:
    """Write the documents, read them on one core and on all, print a line for each kind."""
    every = sorted(os.sched_getaffinity(0))
    if len(every) < 2:
        raise Unavailable("there is one core")
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        for kind, write in MAKERS.items():
            folder = Path(name) / kind
            folder.mkdir()
            for number in range(FILES):
                write(folder / f"{number:04d}.{kind}", number)
            _measured(folder, every)  # the files are in the system's cache, and what is imported is compiled
            passes = [(_measured(folder, every[:1]), _measured(folder, every)) for _ in range(ROUNDS)]
            alone, shared = (min(one[which][0] for one in passes) for which in (0, 1))
            alone_cpu, shared_cpu = (statistics.median(one[which][1] for one in passes) for which in (0, 1))
            busiest = statistics.median(one[1][2] for one in passes)
            say(
                f"reading {kind}: {FILES} files in {shared:.2f} s on {len(every)} cores, {alone:.2f} s on one:"
                f" {alone / shared:.2f}x; {shared_cpu / FILES * 1000:.1f} ms of CPU a file against"
                f" {alone_cpu / FILES * 1000:.1f}, the busiest process {busiest:.0%} of it:"
                f" {alone_cpu / (shared_cpu * busiest):.2f}x on cores that are free (goal {GOAL}x)"
            )
        folder = Path(name) / "many"
        folder.mkdir()
        for number in range(MANY):
            _pdf(folder / f"{number:05d}.pdf", number, FEW_PAGES)
        seconds, cpu, _, readers = _measured(folder, every)
        busy, all_busy = (used / seconds / len(every) for used in (readers, cpu))
        say(
            f"reading {MANY:,} PDFs of {FEW_PAGES} pages in {seconds:.1f} s on {len(every)} cores: its processes are"
            f" busy {all_busy:.1%} of the time (goal 95 %), without the main one {busy:.1%}"
        )


def _measured(folder: Path, cores: list[int]) -> tuple[float, float, float, float]:
    """Seconds by the clock and of CPU that reading a folder takes on these cores, without the start of Python.

    And the share of the CPU that the busiest process had, and the CPU seconds of all but the main one.
    """
    command = [sys.executable, "-m", "benchmarks.reading", CHILD, str(folder), ",".join(map(str, cores))]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    wall, cpu, busiest, readers = map(float, found)
    return wall, cpu, busiest, readers


def _read(folder: Path, cores: list[int]) -> None:
    os.sched_setaffinity(0, cores)
    source = DocumentSource(path=folder.name)
    began, before = time.perf_counter(), time.process_time()
    with Readers() as readers:
        found = list(documents.read(source, folder.parent, readers))
        wall, own = time.perf_counter() - began, time.process_time() - before
        used = [own, *map(_cpu, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())]
    if len(found) != len(list(folder.iterdir())) or any(isinstance(one, UnreadableDocument) for one in found):
        raise SystemExit("not every file was read")
    say(f"{wall} {sum(used)} {max(used) / sum(used)} {sum(used) - own}")


def _cpu(pid: str) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pdf(path: Path, number: int, count: int = PAGES) -> None:
    """Pages of text in a standard font."""
    pages = [_page(number * 100 + page) for page in range(count)]
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>"
        % (b" ".join(b"%d 0 R" % (4 + 2 * at) for at in range(len(pages))), len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for at, page in enumerate(pages):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >>"
            b" /Contents %d 0 R >>" % (5 + 2 * at)
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(page), page))
    content, places = bytearray(b"%PDF-1.4\n"), []
    for at, one in enumerate(objects, 1):
        places.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (at, one)
    table = len(content)
    content += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    content += b"".join(b"%010d 00000 n \n" % place for place in places)
    content += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    path.write_bytes(content)


def _page(number: int) -> bytes:
    lines = (SENTENCE.format(number=number * 50 + line).encode() for line in range(50))
    return b"BT /F1 9 Tf 12 TL 40 800 Td %s ET" % b" ".join(b"(%s) Tj T*" % line for line in lines)


def _docx(path: Path, number: int) -> None:
    """Paragraphs in Word's namespace."""
    main_kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    paragraphs = "".join(
        f"<w:p><w:r><w:t>{SENTENCE.format(number=number * 2000 + at)}</w:t></w:r></w:p>" for at in range(2000)
    )
    parts = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{main_kind}"/></Types>',
        "_rels/.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
        f'<Relationship Id="r1" Type="{office}" Target="word/document.xml"/></Relationships>',
        "word/document.xml": f'<w:document xmlns:w="{word}"><w:body>{paragraphs}</w:body></w:document>',
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for part, content in parts.items():
            file.writestr(part, '<?xml version="1.0" encoding="UTF-8"?>' + content)


def _html(path: Path, number: int) -> None:
    """A page with a menu, headings and paragraphs."""
    menu = "".join(f'<li><a href="/{at}">Chapter {at}</a></li>' for at in range(50))
    body = "".join(
        f"<h2>Clause {at}</h2><p>{SENTENCE.format(number=number * 1000 + at)} <b>See</b> <i>{at}</i>.</p>"
        for at in range(1000)
    )
    path.write_text(
        f"<!doctype html><html><head><title>{number}</title><style>p {{ margin: 0 }}</style></head>"
        f"<body><nav><ul>{menu}</ul></nav><main>{body}</main></body></html>",
        encoding="utf-8",
    )


MAKERS: dict[str, Callable[[Path, int], None]] = {"pdf": _pdf, "docx": _docx, "html": _html}

if __name__ == "__main__":
    _read(Path(sys.argv[2]), [int(core) for core in sys.argv[3].split(",")])
