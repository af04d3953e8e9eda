"""Mails as programs write them that do not write them as the standards say, or in formats of their own."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs7
from cryptography.x509.oid import NameOID

from tests.support.office import compound

HELLO_RTF = bytes.fromhex(
    "2d0000002b0000004c5a4675f1c5c7a703000a007263706731323542320af32068656c090020627705b06c647d0a800fa0"
)
"""The first example of [MS-OXRTFCP]: `hello world`."""
MESSAGE_OBJECT = bytes.fromhex("0703020000000000c000000000000046")
SENT = 0x01D0CF7695CBDB00  # 2015-08-05T12:02:22


def eml(body: bytes, *headers: str) -> bytes:
    """A mail with these headers."""
    return "\n".join(("From: ann@example.org", "Subject: Offer", *headers)).encode() + b"\n\n" + body


def mixed(*sections: bytes, kind: str = "mixed", boundary: str = '"x"') -> bytes:
    """A mail of several sections, each with its own headers."""
    mark = boundary.strip('"').encode()
    body = b"".join(b"--" + mark + b"\n" + one + b"\n" for one in sections) + b"--" + mark + b"--\n"
    return eml(body, "MIME-Version: 1.0", f"Content-Type: multipart/{kind}; boundary={boundary}")


def section(kind: str, body: bytes, *headers: str) -> bytes:
    """A section as it is; in base64 if a header says so."""
    if any("base64" in header for header in headers):
        body = base64.encodebytes(body)
    return "\n".join((f"Content-Type: {kind}", *headers)).encode() + b"\n\n" + body


@cache
def _signer() -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Ann")])
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin + timedelta(days=9))
    return made.sign(key, hashes.SHA256()), key


def signed(data: bytes) -> bytes:
    """The bytes within their signature, as smime.p7m has them."""
    certificate, key = _signer()
    builder = pkcs7.PKCS7SignatureBuilder().set_data(data).add_signer(certificate, key, hashes.SHA256())
    return builder.sign(serialization.Encoding.DER, [pkcs7.PKCS7Options.Binary])


def encrypted(data: bytes) -> bytes:
    """The bytes as only the owner of a key can read them."""
    builder = pkcs7.PKCS7EnvelopeBuilder().set_data(data).add_recipient(_signer()[0])
    return builder.encrypt(serialization.Encoding.DER, [pkcs7.PKCS7Options.Binary])


def signed_in_pieces(*pieces: bytes) -> bytes:
    """The same without lengths, as programs write that do not know them when they begin."""

    def opened(tag: int, *inner: bytes) -> bytes:
        return bytes((tag, 0x80)) + b"".join(inner) + b"\0\0"

    octets = opened(0x24, *(bytes((4, len(one))) + one for one in pieces))
    data = bytes.fromhex("06092a864886f70d010701")
    body = opened(0x30, b"\x02\x01\x01", b"\x31\x00", opened(0x30, data, opened(0xA0, octets)), b"\x31\x00")
    return opened(0x30, bytes.fromhex("06092a864886f70d010702"), opened(0xA0, body))


def outlook_mail(
    values: dict[int, Any],
    recipients: Sequence[dict[int, Any]] = (),
    attached: Sequence[dict[int, Any]] = (),
    head: int = 32,
) -> dict[str, Any]:
    """The storage of a mail; a value that is a dict is the storage of a mail that is attached."""
    root = storage(values, head)
    root |= {f"__recip_version1.0_#{n:08X}": storage(one, 8) for n, one in enumerate(recipients)}
    return root | {f"__attach_version1.0_#{n:08X}": storage(one, 8) for n, one in enumerate(attached)}


def msg(*args: Any) -> bytes:
    """An .msg file."""
    return compound(outlook_mail(*args))


def storage(values: dict[int, Any], head: int) -> dict[str, Any]:
    """Properties: text in UTF-16, text in a code page as a pair `(code page, text)`, bytes, numbers, and times."""
    found: dict[str, Any] = {}
    table = bytes(head)
    for ident, value in values.items():
        kind, data = _typed(value)
        if isinstance(data, dict) or len(data) != 8 or kind in (0x1E, 0x1F, 0x102):
            found[f"__substg1.0_{ident:04X}{kind:04X}"] = data
            data = struct.pack("<Q", len(data))
        table += struct.pack("<HHI", kind, ident, 6) + data
    return found | {"__properties_version1.0": table}


def _typed(value: Any) -> tuple[int, Any]:
    if isinstance(value, str):
        return 0x1F, value.encode("utf-16-le")
    if isinstance(value, tuple):
        return 0x1E, value[1].encode(value[0])
    if isinstance(value, int):
        return (0x40, struct.pack("<Q", value)) if value > 0xFFFFFFFF or value == 0 else (3, struct.pack("<Q", value))
    return (0x0D, value) if isinstance(value, dict) else (0x102, value)


def tnef(values: dict[int, Any], *attached: dict[int, Any]) -> bytes:
    """A winmail.dat; a value of an attachment that is a list is a mail: its own arguments of this function."""
    found = struct.pack("<IH", 0x223E9F78, 1) + _attribute(1, 0x00069003, _tnef_properties(values))
    for one in attached:
        found += _attribute(2, 0x00069002, bytes(14)) + _attribute(2, 0x00069005, _tnef_properties(one))
    return found


def _attribute(level: int, ident: int, data: bytes) -> bytes:
    return struct.pack("<BII", level, ident, len(data)) + data + struct.pack("<H", sum(data) & 0xFFFF)


def _tnef_properties(values: dict[int, Any]) -> bytes:
    found = struct.pack("<I", len(values))
    for ident, value in values.items():
        kind, data = (0x0D, MESSAGE_OBJECT + tnef(*value)) if isinstance(value, list) else _typed(value)
        found += struct.pack("<HH", kind, ident)
        if ident >= 0x8000:  # a property with a name
            found += bytes(16) + struct.pack("<II", 1, 6) + b"x\0y\0\0\0\0\0"
        if kind == 3:
            found += data[:4]
        elif kind == 0x40:
            found += data
        else:
            found += struct.pack("<II", 1, len(data)) + data + bytes(-len(data) % 4)
    return found
