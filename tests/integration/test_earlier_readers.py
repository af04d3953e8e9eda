"""A home whose documents the version before read and answered: only those whose text is another one now are asked."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.core.model import Why
from orchestrator.documents import Document, UnreadableDocument, part_by_part, readers, versions
from orchestrator.documents.worker_functions import from_plain
from tests.integration.test_changes_build import Nights
from tests.support import office
from tests.support.pdfs import latin

DOCUMENTS, OF_EACH = 120, 10
CHANGED = "/7."
"""Each kind's document of this number was read as another text by the version before."""


def numbered(data: bytes, end: str, number: int) -> bytes:
    """Return an office document whose first text before this tag has a number more."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            tag = end.encode()
            new.writestr(name, old.read(name).replace(tag, b" %d%s" % (number, tag), 1))
    return out.getvalue()


KINDS: dict[str, Callable[[int], bytes]] = {
    "txt": lambda number: f"Letter {number}".encode(),
    "html": lambda number: f"<p>Page {number}".encode(),
    "pdf": lambda number: latin([f"Notice {number}"]),
    "rtf": lambda number: office.RTF.replace(b"Second", b"Second %d" % number),
    "docx": lambda number: numbered(office.word_report(), "</w:t>", number),
    "pptx": lambda number: numbered(office.presentation(), "</a:t>", number),
    "odt": lambda number: numbered(office.letter(), "</text:p>", number),
    "epub": lambda number: numbered(office.book(), "</p>", number),
    "xlsx": lambda number: office.workbook({"A": [["total", number]]}),
    "ods": lambda number: office.calc_sheet([["total", f"{number}"]]),
    "eml": lambda number: office.mail(f"Offer {number}"),
    "msg": lambda number: office.outlook(f"Offer {number}", f"Dear {number}", "ann@example.org"),
}


@pytest.fixture
def nights(store_url: str, tmp_path: Path) -> Iterator[Nights]:
    found = Nights(tmp_path, store_url)
    for kind, made in KINDS.items():
        (found.docs / kind).mkdir()
        for number in range(OF_EACH):
            (found.docs / kind / f"{number}.{kind}").write_bytes(made(number))
    yield found
    found.store.close()


def as_before(found: object) -> Document | UnreadableDocument:
    """What the version before returned for what a worker process returns."""
    one = from_plain(found)  # type: ignore[arg-type]
    if isinstance(one, Document) and CHANGED in one.key:
        text = f"{one.text}, without its notes"
        made = one.key.endswith("#message")  # a mail's own text, of which its reader makes the bytes
        return replace(one, text=text, digest=sha256(text.encode()).hexdigest() if made else one.digest)
    return one


@pytest.mark.thinned(2)
def test_only_documents_whose_text_changed_are_asked_again(nights: Nights) -> None:
    with pytest.MonkeyPatch.context() as before:
        before.setattr(versions, "READERS", dict.fromkeys(versions.READERS, versions.FIRST))
        before.setattr(readers, "from_plain", as_before)
        before.setattr(part_by_part, "from_plain", as_before)
        _, report = nights.answered()
    assert (report.documents, report.carried) == (DOCUMENTS, 0)

    job, report = nights.night()
    whys = nights.whys(job)
    asked = {name for name, why in whys.items() if why != Why.UNCHANGED}
    in_worker_processes = KINDS.keys() - {"txt"}
    assert {name.partition("/")[0] for name in asked} == in_worker_processes
    assert all(CHANGED in f"/{name}" for name in asked)
    assert len(asked) == len(in_worker_processes)
    assert {whys[name] for name in asked} == {Why.READER}
    assert report.carried == DOCUMENTS - len(asked)
    assert f"{len(asked)} read in another way" in report.changes

    nights.answer(job)
    job, report = nights.night()
    assert (report.unread, report.carried) == (DOCUMENTS, DOCUMENTS)
