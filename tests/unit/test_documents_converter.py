"""Formats that LibreOffice alone reads: off until asked for, converted by a process that sees only its file."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import zipfile
from email.message import EmailMessage
from pathlib import Path

import pytest

from orchestrator.core.bounded.process import WorkerLimits
from orchestrator.documents import Document, Ignored, UnreadableDocument, sources
from orchestrator.documents.readers import Readers
from orchestrator.documents.unchanged_files import way_of
from orchestrator.settings.config import ReadingSettings
from orchestrator.settings.job_spec import DocumentSource
from tests.support import bombs

OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 504


def can_confine() -> bool:
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--mount",
        "--fork",
        "mount",
        "-t",
        "proc",
        "x",
        "/proc",
    ]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


confined = pytest.mark.skipif(not can_confine(), reason="no namespaces can be made here")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def found(base: Path, readers: Readers, ignored: Ignored | None = None, path: str = "in") -> list[object]:
    with readers:
        return list(sources.read(DocumentSource(path=path), base, readers, ignored))


def put(base: Path, name: str, data: bytes) -> None:
    (base / "in").mkdir(exist_ok=True)
    (base / "in" / name).write_bytes(data)


def program(base: Path, script: str) -> str:
    """A program in the place of LibreOffice's, with a folder of its own."""
    path = base / "office" / "program" / "soffice"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def archive(base: Path) -> None:
    """A ZIP with old documents, and a mail with one that has no name."""
    mail = EmailMessage()
    mail["Subject"], mail["From"] = "Offer", "ann@example.org"
    mail.set_content("See the attachment.")
    mail.add_attachment(OLD, maintype="application", subtype="msword")
    with zipfile.ZipFile(base / "in.zip", "w") as made:
        made.writestr("x/../a.doc", OLD)
        made.writestr("b.txt", "between")
        made.writestr("c.ppt", OLD)
        made.writestr("mail.eml", mail.as_bytes())


def texts(found: list[object]) -> list[Document]:
    assert all(isinstance(one, Document) for one in found), found
    return [one for one in found if isinstance(one, Document)]


def problem(one: object) -> tuple[str, str]:
    assert isinstance(one, UnreadableDocument)
    return one.code, one.message


@pytest.mark.slow
def test_nothing_is_converted_unless_it_is_asked_for(tmp_path: Path) -> None:
    put(tmp_path, "a.doc", OLD)
    put(tmp_path, "b.txt", b"yes")
    ignored = Ignored()
    [one] = found(tmp_path, Readers(), ignored)
    assert isinstance(one, Document)
    assert ignored.to_json()["kinds"] == {".doc": 1}
    [one] = found(tmp_path, Readers(), path="in/a.doc")
    code, message = problem(one)
    assert code == "unsupported"
    assert 'converter = "soffice"' in message


@pytest.mark.slow
@confined
def test_what_is_converted_is_read_as_what_it_became(tmp_path: Path, own_folder: Path) -> None:
    made = bombs.word("<w:p><w:r><w:t>Heat pumps</w:t></w:r></w:p>")
    script = 'cp "${0%/program/*}/made.docx" /conversion/out/document.docx; cat /conversion/document.doc > /dev/null'
    office = program(tmp_path, f"mkdir /conversion/out; {script}")
    (tmp_path / "office" / "made.docx").write_bytes(made)
    for name in ("a.doc", "b.DOC"):
        put(tmp_path, name, OLD)
    both = found(tmp_path, Readers(2, converter=office))
    assert [(one.name, one.text, one.size, one.digest) for one in both if isinstance(one, Document)] == [
        (name, "Heat pumps", len(OLD), hashlib.sha256(OLD).hexdigest()) for name in ("a.doc", "b.DOC")
    ]
    assert not list(own_folder.iterdir())


@pytest.mark.slow
def test_parts_are_not_converted_unless_it_is_asked_for(tmp_path: Path) -> None:
    archive(tmp_path)
    ignored = Ignored()
    assert [one.key for one in texts(found(tmp_path, Readers(), ignored, "in.zip"))] == [
        "in.zip#b.txt", "in.zip#mail.eml#message",
    ]  # fmt: skip
    assert ignored.to_json()["kinds"] == {".doc": 2, ".ppt": 1}


@pytest.mark.long
@confined
def test_a_part_is_read_as_what_it_became(tmp_path: Path, own_folder: Path) -> None:
    office = program(tmp_path, 'mkdir /conversion/out; cp "${0%/program/*}/made.docx" /conversion/out/document.docx')
    (tmp_path / "office" / "made.docx").write_bytes(bombs.word("<w:p><w:r><w:t>Heat pumps</w:t></w:r></w:p>"))
    archive(tmp_path)
    converted, plain, lost, message, attached = found(tmp_path, Readers(1, converter=office), path="in.zip")
    assert [(one.key, one.text, one.size) for one in texts([converted, plain, message, attached])] == [
        ("in.zip#x/../a.doc", "Heat pumps", len(OLD)),
        ("in.zip#b.txt", "between", 7),
        ("in.zip#mail.eml#message", "From: ann@example.org\nSubject: Offer\n\nSee the attachment.", 57),
        ("in.zip#mail.eml#part-1.doc", "Heat pumps", len(OLD)),
    ]
    [first, last] = texts([converted, attached])
    assert (first.fields["inside"], first.fields["folder"], last.fields["subject"]) == ("in.zip", "x/..", "Offer")
    assert problem(lost)[0] == "unreadable"
    assert not list(own_folder.iterdir())


@pytest.mark.parametrize(("kind", "is_other"), [("converted", True), ("zip", True), ("eml", True), ("pdf", False)])
def test_files_that_the_converter_may_read_are_looked_at_again(kind: str, is_other: bool) -> None:
    off, on = (way_of(DocumentSource(path="in"), kind, None, converts=converts) for converts in (False, True))
    assert (off != on) is is_other


@confined
def test_the_converter_sees_its_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    (tmp_path / "other.txt").write_text("private")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"""
        cd /conversion
        seen="$(echo *) home:$(cat {tmp_path}/other.txt /etc/passwd {Path.home()}/.profile 2>/dev/null | wc -c)"
        seen="$seen keys:$(cat /proc/*/environ 2>/dev/null | grep -c sk-secret)"
        seen="$seen net:$(bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' 2>/dev/null && echo yes || echo no)"
        seen="$seen write:$(touch /usr/x /bin/x {tmp_path}/office/x 2>/dev/null && echo yes || echo no)"
        seen="$seen mount:$(mount -t tmpfs x /opt 2>/dev/null && echo yes || echo no)"
        echo "$seen"; exit 3"""
        put(tmp_path, "a.ppt", OLD)
        [one] = found(tmp_path, Readers(converter=program(tmp_path, script)))
    code, message = problem(one)
    assert code == "unreadable"
    assert "confined document.ppt profile home:0 keys:0 net:no write:no mount:no" in message


@confined
def test_one_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path, own_folder: Path) -> None:
    put(tmp_path, "a.doc", OLD)
    number = f"{60_000 + os.getpid()}"  # seconds, by which the process is known
    readers = Readers(limits=WorkerLimits(patience=1.0), converter=program(tmp_path, f"sleep {number} & wait"))
    [one] = found(tmp_path, readers)
    assert problem(one)[0] == "time_limit"
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if number.encode() in line]
    assert not list(own_folder.iterdir())


def test_where_nothing_can_be_confined_nothing_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    office = program(tmp_path, "touch /conversion/out")
    refusing = tmp_path / "bin" / "unshare"
    refusing.parent.mkdir()
    refusing.write_text("#!/bin/sh\necho unshare failed: Operation not permitted; exit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{refusing.parent}:{os.environ['PATH']}")
    put(tmp_path, "a.doc", OLD)
    put(tmp_path, "b.txt", b"yes")
    bad, good = found(tmp_path, Readers(converter=office))
    code, message = problem(bad)
    assert code == "unsupported"
    assert "cannot be confined on this machine: unshare failed: Operation not permitted" in message
    assert texts([good])[0].text == "yes"


@confined
@pytest.mark.parametrize(
    "script",
    ["head -c 30000000 /dev/zero > /conversion/large", "x=$(head -c 90000000 /dev/zero | tr '\\0' a)"],
    ids=["a large file", "much memory"],
)
def test_the_converter_has_bounds(tmp_path: Path, own_folder: Path, script: str) -> None:
    office = program(tmp_path, f'set -e\nmkdir /conversion/out\n{script}\ncp "${{0%/program/*}}/made.docx" '
                     "/conversion/out/document.docx")  # fmt: skip
    (tmp_path / "office" / "made.docx").write_bytes(bombs.word("<w:p><w:r><w:t>Heat pumps</w:t></w:r></w:p>"))
    put(tmp_path, "a.doc", OLD)
    limits = WorkerLimits(memory=40_000_000, value=1_000_000)
    [one] = found(tmp_path, Readers(limits=limits, converter=office))
    assert problem(one)[0] == "unreadable"
    assert not list(own_folder.iterdir())


def test_what_cannot_be_converted_says_why(tmp_path: Path) -> None:
    put(tmp_path, "a.doc", OLD)
    [one] = found(tmp_path, Readers(converter="no-such-office"))
    code, message = problem(one)
    assert (code, "no program no-such-office" in message) == ("unsupported", True)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.doc", OLD + b"\xec\xa5" + b"\0" * 9 + b"\x01" + b"\0" * 500),
        ("a.ppt", OLD + "EncryptedSummary".encode("utf-16-le")),
        ("c.ppt", OLD + b"\0\0\xf6\x0f\x2f\0\0\0\x14\0\0\0\xdf\xc4\xd1\xf3" + b"\0" * 40),
        ("b.doc", OLD + "EncryptedPackage".encode("utf-16-le")),
    ],
)
def test_a_locked_document_is_not_tried(tmp_path: Path, name: str, data: bytes) -> None:
    put(tmp_path, name, data)
    [one] = found(tmp_path, Readers(converter="sh"))
    assert problem(one)[0] == "encrypted"


@pytest.mark.long
@confined
@pytest.mark.skipif(
    shutil.which("soffice") is None, reason="LibreOffice is not installed: apt-get install libreoffice-nogui"
)
def test_libreoffice_itself(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\ufeffGröße 12,000 €", encoding="utf-8")
    profile = f"-env:UserInstallation=file://{tmp_path}/profile"
    subprocess.run(
        [
            "soffice",
            "--headless",
            profile,
            "--convert-to",
            "doc:MS Word 97",
            "--outdir",
            tmp_path / "in",
            tmp_path / "a.txt",
        ],
        check=True,
        capture_output=True,
    )
    put(tmp_path, "broken.doc", (tmp_path / "in" / "a.doc").read_bytes()[:700])
    with Readers.of(ReadingSettings(converter="soffice")) as readers:
        first, *rest = sources.read(DocumentSource(path="in"), tmp_path, readers)
    assert isinstance(first, Document)
    assert first.text == "Größe 12,000 €"
    assert len(rest) == 1
