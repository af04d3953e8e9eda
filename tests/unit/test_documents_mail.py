"""Mail as it really comes: nothing that stands in it is lost, and what cannot be read is a problem with its name."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.documents import Document, packed_rtf, smime, tnef
from orchestrator.documents.types import ExtractionError
from tests.support import mails
from tests.support.mails import eml, mixed, msg, section
from tests.support.office import outlook, zipped
from tests.unit.test_documents_kinds import found_in, told

HEAD = "From: ann@example.org\nSubject: Offer\n\n"
TEXT = section("text/plain", b"see below")
INNER = "From: eve@example.org\nSubject: Inner\nContent-Type: text/plain; charset=utf-8\n\nFor 40 €.\n".encode()
INNER_TEXT = "From: eve@example.org\nSubject: Inner\n\nFor 40 €."
CALENDAR = b"BEGIN:VCALENDAR\r\nSUMMARY:Board m\r\n eeting\r\nEND:VCALENDAR"
STATUS = b"Reporting-MTA: dns; mx.example.org\n\nFinal-Recipient: rfc822; bo@example.org\nStatus: 5.1.1\n"
P7M = "application/pkcs7-mime; smime-type=signed-data; name=smime.p7m"
BASE64 = "Content-Transfer-Encoding: base64"
SIGNED_TEXT = section("text/plain; charset=utf-8", "für 40 €".encode())
WINMAIL = mails.tnef(
    {0x37: "Offer", 0x1000: "The full text of 2026.", 0x8001: "named"},
    {0x3707: "terms.txt", 0x3701: b"40 EUR", 0x3705: 1},
    {0x3001: "Older", 0x3701: [{0x37: "Older", 0x1000: "from May"}, {0x3707: "a.txt", 0x3701: b"deep"}]},
)


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (
            mixed(section("text/plain", b"The whole text."), kind="alternative", boundary="----=_Next_01"),
            {"message": HEAD + "The whole text."},
        ),
        (
            mixed(TEXT, boundary="x").replace(b"boundary=x", b"boundary=other"),
            {"message": HEAD + "see below"},
        ),
        (eml(b"plain", "Content-Type: multipart/mixed"), {"message": HEAD + "plain"}),
        (eml(b"<p>one", "Content-Type: text/html charset=utf-8"), {"message": HEAD + "one"}),
        (eml(b"cGxhaW4=", "Content-Transfer-Encoding: base64 "), {"message": HEAD + "plain"}),
        (
            mixed(TEXT, section("message/rfc822; name=in.eml", INNER, BASE64)),
            {"message": HEAD + "see below", "in.eml#message": INNER_TEXT},
        ),
        (
            mixed(TEXT, section("message/rfc822", INNER)),
            {"message": HEAD + "see below", "part-1.eml#message": INNER_TEXT},
        ),
        (
            mixed(
                section("multipart/alternative; boundary=y", b"--y\n" + TEXT + b"\n--y\n"
                + section("text/calendar", CALENDAR) + b"\n--y--"),
                section("message/delivery-status", STATUS),
                section("text/calendar; name=a.ics", CALENDAR),
            ),
            {
                "message": HEAD + "see below",
                "part-1.ics": "BEGIN:VCALENDAR\nSUMMARY:Board meeting\nEND:VCALENDAR",
                "part-2.txt": "Reporting-MTA: dns; mx.example.org\n\nFinal-Recipient: rfc822; bo@example.org\n"
                "Status: 5.1.1",
                "a.ics": "BEGIN:VCALENDAR\nSUMMARY:Board meeting\nEND:VCALENDAR",
            },
        ),
        (
            mixed(
                TEXT,
                section(
                    "multipart/mixed; boundary=y",
                    b"--y\n" + section("text/html", b"<p>x") + b"\n--y\n"
                    + section("text/plain", b"40", "Content-Disposition: attachment; filename=a.txt") + b"\n--y--",
                ),
                kind="alternative",
            ),
            {"message": HEAD + "see below", "a.txt": "40"},
        ),
        (section(P7M, mails.signed(SIGNED_TEXT), BASE64, "Subject: Deal"), {"message": "Subject: Deal\n\nfür 40 €"}),
        (
            section(P7M, mails.signed_in_pieces(SIGNED_TEXT[:20], SIGNED_TEXT[20:]), BASE64, "Subject: Deal"),
            {"message": "Subject: Deal\n\nfür 40 €"},
        ),
        (section(P7M, mails.encrypted(SIGNED_TEXT), BASE64, "Subject: Deal"), {"message": "!encrypted"}),
        (section(P7M, b"0\x80", BASE64, "Subject: Deal"), {"message": "!unreadable"}),
        (
            mixed(TEXT, section(P7M, mails.encrypted(SIGNED_TEXT), BASE64)),
            {"message": HEAD + "see below", "smime.p7m": "!encrypted"},
        ),
        (
            mixed(TEXT, section("application/pkcs7-mime; name=a.txt.p7m", mails.signed(b"40 EUR"), BASE64)),
            {"message": HEAD + "see below", "a.txt": "40 EUR"},
        ),
        (mixed(section("application/pgp-encrypted", b"Version: 1"), kind="encrypted"), {"message": "!encrypted"}),
        (eml(b"-----BEGIN PGP MESSAGE-----\n\nhQE"), {"message": "!encrypted"}),
        (
            mixed(section("application/pgp-encrypted", b"Version: 1"), section("application/octet-stream", b"hQE")),
            {"message": "!encrypted"},
        ),
        (
            mixed(section("application/octet-stream; name=mail.asc", b"\n-----BEGIN PGP MESSAGE-----\n\nhQE")),
            {"message": "!encrypted"},
        ),
        (
            mixed(section("application/pgp-keys; name=key.asc", b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQE")),
            {"message": "!empty"},
        ),
        (eml(b"half", 'Content-Type: message/partial; number=1; total=2; id="a"'), {"message": "!unreadable"}),
        (eml(b"\x81\x8d\x8f\x90\x9d", "Content-Type: text/plain"), {"message": "!encoding"}),
        (b"From: ann@example.org\n\n\n", {"message": "!empty"}),
        (eml(b""), {"message": HEAD.strip()}),
        (
            mixed(TEXT, section("application/ms-tnef; name=winmail.dat", WINMAIL, BASE64)),
            {
                "message": HEAD + "see below",
                "winmail.dat#message": "Subject: Offer\n\nThe full text of 2026.",
                "winmail.dat#terms.txt": "40 EUR",
                "winmail.dat#Older.msg#message": "Subject: Older\n\nfrom May",
                "winmail.dat#Older.msg#a.txt": "deep",
            },
        ),
        (
            section("application/ms-tnef", mails.tnef({0x1009: mails.HELLO_RTF}), BASE64, "Subject: Deal"),
            {"message": "Subject: Deal\n\nhello world"},
        ),
        (
            mixed(TEXT, section("application/ms-tnef", b"x\x9f>\x22", BASE64)),
            {"message": HEAD + "see below", "winmail.dat": "!unreadable"},
        ),
        (eml(b" \n"), {"message": "From: ann@example.org\nSubject: Offer"}),
        (eml(b"<p>&nbsp;</p>", "Content-Type: text/html"), {"message": "From: ann@example.org\nSubject: Offer"}),
        (eml(b"<IMG src='cid:1'>", "Content-Type: text/html"), {"message": "!empty"}),
        (
            mixed(section("text/plain; name=a.txt", b"x", "Content-Disposition: attachment")),
            {"message": "!empty", "a.txt": "x"},
        ),
        (
            mixed(section("text/plain; name=body.txt", b"named")),
            {"message": HEAD + "named"},
        ),
        (
            mixed(TEXT, section("text/plain; name=\"=?utf-8?B?w7wudHh0?=\"", b"x")),
            {"message": HEAD + "see below", "ü.txt": "x"},
        ),
    ],
)  # fmt: skip
def test_what_a_mail_says(tmp_path: Path, data: bytes, texts: dict[str, str]) -> None:
    assert told(found_in(tmp_path, {"a.eml": data})) == {f"a.eml#{name}": text for name, text in texts.items()}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-8"])
def test_a_mail_may_be_a_file_of_any_unicode(tmp_path: Path, encoding: str) -> None:
    text = "Subject: Größe\nContent-Type: text/plain; charset=windows-1252\nX: " + "x" * 60 + "\n\n40 Größen"
    data = text.encode(encoding) if encoding != "utf-8" else b"\n\n" + text.replace("windows-1252", "x").encode()
    found = told(found_in(tmp_path, {"a.eml": data}))
    assert found["a.eml#message"] in ("Subject: Größe\n\n40 Größen", "Subject: Größe\n\n40 GrÃ¶ÃŸen")


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("=?utf-8?B?R3LDtg==?= =?utf-8?B?w58=?= =?utf-8?B?ZQ==?=", "Größe"),
        ("=?utf-8?B?R3LD?= =?utf-8?B?tsOfZQ==?=", "Größe"),  # cut within a character
        ("=?gb2312?B?1UA=?=", "誁"),  # a character that only GBK has
        ("=?x-no-such?Q?a=E9?=", "aé"),
        ("=?utf-8?B?broken", "=?utf-8?B?broken"),
        ("Gr\udcf6\udcdfe", "Größe"),
        ("Gr\udcc3\udcb6\udcc3\udc9fe", "Größe"),
    ],
)
def test_headers_as_they_are_meant(tmp_path: Path, header: str, text: str) -> None:
    data = f"Subject: {header}\n\nx".encode("ascii", "surrogateescape")
    assert told(found_in(tmp_path, {"a.eml": data})) == {"a.eml#message": f"Subject: {text}\n\nx"}


def test_all_whom_a_mail_went_to_are_named(tmp_path: Path) -> None:
    found = found_in(tmp_path, {"a.eml": b"To: a@x.org\nCc: b@x.org\nBcc: c@x.org\nSubject: s\n\nx"})
    [one] = found.values()
    assert isinstance(one, Document)
    assert one.text.startswith("To: a@x.org\nCc: b@x.org\nBcc: c@x.org\n")
    assert one.fields["recipients"] == "a@x.org, b@x.org, c@x.org"


EXCHANGE = "/o=Org/ou=Group/cn=Recipients/cn=ann"
SECURE = {0x1A: "IPM.Note.SMIME", 0x37: "Offer"}
NOTE = {0x1A: "IPM.Note", 0x37: "Offer"}


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (
            msg(
                NOTE | {0x1000: "x", 0x0C1A: "Ann", 0x0C1F: EXCHANGE, 0x5D01: "ann@x.org", 0x39: mails.SENT},
                [
                    {0x3001: "Bo", 0x3003: EXCHANGE, 0x39FE: "bo@x.org", 0x0C15: 1},
                    {0x3001: "Cy", 0x3003: EXCHANGE, 0x0C15: 2},
                    {0x3001: "Di", 0x3003: "di@x.org", 0x0C15: 3},
                ],
            ),
            {
                "message": 'From: "Ann" <ann@x.org>\nTo: Bo <bo@x.org>\nCc: Cy\nBcc: Di <di@x.org>\n'
                "Date: 2015-08-05T12:02:22+00:00\nSubject: Offer\n\nx"
            },
        ),
        (msg(NOTE | {0x1000: "x\0", 0x39: 0, 0x0E06: 0x0CB34557A3DD4000}), {"message": "Subject: Offer\n\nx"}),
        (
            msg(NOTE | {0x1000: "x", 0x7D: "From: =?utf-8?Q?J=C3=BC?= <j@x.org>\nDate: Mon, 2 Mar 26 9:15 +0100"}),
            {"message": "From: Jü <j@x.org>\nDate: 2026-03-02T09:15:00+01:00\nSubject: Offer\n\nx"},
        ),
        (
            msg({0x37: ("cp1251", "Счёт"), 0x1000: ("cp1251", "Да"), 0x3FFD: 1251}, [{0x3001: ("cp1251", "Яна")}]),
            {"message": "To: Яна\nSubject: Счёт\n\nДа"},
        ),
        (msg({0x37: ("cp1252", "Größe"), 0x3FDE: 65001, 0x3FF1: 0x407}), {"message": "Subject: Größe"}),
        (msg({0x37: ("cp950", "格式測試"), 0x3FDE: 950, 0x3FF1: 0x404}), {"message": "Subject: 格式測試"}),
        (msg(NOTE | {0x1013: "<p>Größe".encode(), 0x3FDE: 65001}), {"message": "Subject: Offer\n\nGröße"}),
        (msg(NOTE | {0x1013: "<p>Größe"}), {"message": "Subject: Offer\n\nGröße"}),
        (msg(NOTE | {0x1009: mails.HELLO_RTF}), {"message": "Subject: Offer\n\nhello world"}),
        (
            msg({0x1A: "REPORT.IPM.Note.NDR", 0x37: "Returned", 0x1001: "No such person."}),
            {"message": "Subject: Returned\n\nNo such person."},
        ),
        (msg(NOTE | {0x1009: mails.HELLO_RTF[:9]}), {"message": "!unreadable"}),
        (
            msg(
                NOTE | {0x1000: "x"},
                [],
                [
                    {0x3001: "Re: a/b", 0x3701: mails.outlook_mail({0x37: "Re: a/b", 0x1000: "inner"}, [], [
                        {0x3704: "deep.txt", 0x3701: b"40"}], 24)},
                    {0x3707: "in.eml", 0x3701: INNER},
                    {0x3707: "link", 0x3705: 7},
                ],
            ),
            {
                "message": "Subject: Offer\n\nx",
                "Re: a b.msg#message": "Subject: Re: a/b\n\ninner",
                "Re: a b.msg#deep.txt": "40",
                "in.eml#message": INNER_TEXT,
            },
        ),
        (
            msg({0x1A: "IPM.Note.SMIME.MultipartSigned", 0x37: "Offer"}, [], [{0x3707: "smime.p7m", 0x370E:
                "multipart/signed", 0x3701: mixed(section("text/plain", b"signed text"), kind="signed")}]),
            {"message": "Subject: Offer\n\nsigned text"},
        ),
        (
            msg({0x1A: "IPM.Note.SMIME.MultipartSigned", 0x37: "Offer"}, [], [{0x370E: "multipart/signed",
                0x3701: b"MIME-Version: 1.0\n" + mixed(section("text/plain", b"signed text"), kind="signed")}]),
            {"message": "Subject: Offer\n\nsigned text"},
        ),
        (
            msg(SECURE, [], [{0x3707: "smime.p7m", 0x3701: mails.signed(SIGNED_TEXT)}]),
            {"message": "Subject: Offer\n\nfür 40 €"},
        ),
        (
            msg(SECURE, [], [{0x3707: "smime.p7m", 0x3701: mails.encrypted(b"x")}]),
            {"message": "!encrypted"},
        ),
        (
            msg(NOTE | {0x1000: " \r\n"}, [], [{0x370E: "application/pgp-encrypted", 0x3701: b"Version: 1"}, {
                0x3707: "encrypted.asc", 0x3701: b"-----BEGIN PGP MESSAGE-----"}]),
            {"message": "!encrypted"},
        ),
        (
            msg(NOTE, [], [{0x3707: "mail.asc", 0x3701: b"-----BEGIN PGP MESSAGE-----"}]),
            {"message": "!encrypted"},
        ),
    ],
)  # fmt: skip
def test_what_a_mail_of_outlook_says(tmp_path: Path, data: bytes, texts: dict[str, str]) -> None:
    assert told(found_in(tmp_path, {"a.msg": data})) == {f"a.msg#{name}": text for name, text in texts.items()}


def test_a_mail_is_read_in_its_own_format_whatever_its_ending(tmp_path: Path) -> None:
    files = {"sent.msg": eml(b"see below"), "kept.eml": outlook("Offer", "see below", "ann@example.org")}
    texts = told(found_in(tmp_path, files))
    assert texts.keys() == {"sent.msg#message", "kept.eml#message"}
    assert all(text.endswith("Subject: Offer\n\nsee below") for text in texts.values()), texts


def test_the_digest_of_a_mail_of_outlook_is_of_the_lines_that_it_has(tmp_path: Path) -> None:
    """As of the version before: its answers hold."""
    files = {"m.msg": outlook("Offer", "Dear Ben,\r\nsee below.\r\n", "ann@example.org")}
    found = found_in(tmp_path, files)["m.msg#message"]
    assert isinstance(found, Document)
    assert found.text == "From: <ann@example.org>\nSubject: Offer\n\nDear Ben,\nsee below."
    sent = b"From: <ann@example.org>\nSubject: Offer\n\nDear Ben,\r\nsee below."
    assert found.digest == sha256(sent).hexdigest()


def test_the_text_of_a_winmail_that_the_mail_has_already_is_not_asked_twice(tmp_path: Path) -> None:
    data = mixed(section("text/plain", b"The full\ntext of 2026."), section("application/ms-tnef", WINMAIL, BASE64))
    assert "a.eml#winmail.dat#message" not in told(found_in(tmp_path, {"a.eml": data}))


def test_mails_in_mails_are_opened_to_a_depth(tmp_path: Path) -> None:
    inner = {0x37: "0", 0x1000: "core"}
    storage = mails.outlook_mail(inner, [], [], 24)
    for depth in range(1, 9):
        storage = mails.outlook_mail({0x37: f"{depth}"}, [], [{0x3001: "in", 0x3701: storage}], 24)
    data = msg({0x37: "outer"}, [], [{0x3001: "in", 0x3701: storage}])
    found = told(found_in(tmp_path, {"a.zip": zipped({"a.msg": data})}))
    assert "!too_large" in found.values()
    assert len(found) < 6


MADE = (mails.signed(b"x" * 300), mails.signed_in_pieces(b"x", b"y"), WINMAIL, mails.HELLO_RTF)


@given(st.sampled_from(MADE), st.integers(0, 400), st.binary(max_size=6))
def test_damage_is_a_problem_and_no_crash(data: bytes, at: int, put: bytes) -> None:
    for damaged in (data[:at] + put + data[at + len(put) :], data[:at]):
        for read in (smime.content, tnef.outlook_text, lambda some: packed_rtf.unpacked(some, 10_000)):
            try:
                read(damaged)
            except ExtractionError:
                continue
