"""PDFs written by hand, for what no library writes: vertical lines, and characters without a width."""

from __future__ import annotations

import re
from collections.abc import Sequence

_DESCRIPTOR = (
    b"<</Type/FontDescriptor/FontName/HeiseiMin-W3/Flags 4/FontBBox[0 -200 1000 900]/ItalicAngle 0/Ascent 800"
    b"/Descent -200/CapHeight 700/StemV 80>>"
)


def written(objects: Sequence[bytes]) -> bytes:
    """A file of these objects, of which the first is its catalogue."""
    out, places = b"%PDF-1.7\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(places) + 1, table)
    return out + head + b"trailer <</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(places) + 1, len(out))


def page(content: bytes, *fonts: bytes) -> bytes:
    """A file of one page, whose font F is the first of these objects; they are numbered from 5."""
    return written(
        [
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
            b"<</Length %d>>stream\n%s\nendstream" % (len(content), content),
            *fonts,
        ]
    )


def japanese(lines: Sequence[tuple[float, float, str]], *, is_vertical: bool = True, has_width: bool = True) -> bytes:
    """Lines of Japanese, each with the place of its first character in points; not embedded."""
    texts = (b"1 0 0 1 %g %g Tm <%s> Tj" % (x, y, text.encode("utf-16-be").hex().encode()) for x, y, text in lines)
    return page(
        b"BT /F 12 Tf " + b" ".join(texts) + b" ET",
        b"<</Type/Font/Subtype/Type0/BaseFont/HeiseiMin-W3/Encoding/UniJIS-UCS2-%s/DescendantFonts[6 0 R]>>"
        % (b"V" if is_vertical else b"H"),
        b"<</Type/Font/Subtype/CIDFontType0/BaseFont/HeiseiMin-W3/CIDSystemInfo<</Registry(Adobe)/Ordering(Japan1)"
        b"/Supplement 2>>/FontDescriptor 7 0 R%s>>" % (b"" if has_width else b"/DW 0"),
        _DESCRIPTOR,
    )


def latin(lines: Sequence[str]) -> bytes:
    """Lines in a font that every reader has."""
    texts = (b"(%s) Tj 0 -14 Td" % line.encode("latin-1").translate(_ESCAPED) for line in lines)
    return page(
        b"BT /F 11 Tf 60 780 Td " + b" ".join(texts) + b" ET", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    )


def drawn(lines: Sequence[str]) -> bytes:
    """Lines in a font whose letters are drawings (Type 3), which only their names tell."""
    letters = sorted(set("".join(lines)))
    codes = {letter: code for code, letter in enumerate(letters, 1)}
    names = b"".join(b"/%s" % (b"space" if one == " " else one.encode()) for one in letters)
    texts = (b"<%s> Tj 0 -14 Td" % bytes(map(codes.__getitem__, line)).hex().encode() for line in lines)
    shape = b"600 0 0 0 500 700 d1 0 0 500 700 re f"
    drawings = b" ".join(b"/%s 6 0 R" % name for name in names[1:].split(b"/"))
    return page(
        b"BT /F 11 Tf 60 780 Td " + b" ".join(texts) + b" ET",
        b"<</Type/Font/Subtype/Type3/FontBBox[0 0 600 700]/FontMatrix[.001 0 0 .001 0 0]/FirstChar 1/LastChar %d"
        b"/Widths[%s]/Encoding<</Differences[1%s]>>/CharProcs<<%s>>>>"
        % (len(letters), b"600 " * len(letters), names, drawings),
        b"<</Length %d>>stream\n%s\nendstream" % (len(shape), shape),
    )


_ESCAPED = bytes(code if chr(code) not in "()\\" else ord("?") for code in range(256))


def placed(texts: Sequence[tuple[float, float, str]], size: int = 10, *, share: float = 0.6) -> bytes:
    """Latin texts, each with the place where it begins in points; of `m^{2}` and `H_{2}O`, 2 is raised or lowered.

    `share`: the size of raised and lowered characters.
    """
    drawn = (b"1 0 0 1 %g %g Tm %s" % (x, y, _shown(text, size, share)) for x, y, text in texts)
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"
    return page(b"BT /F %d Tf " % size + b" ".join(drawn) + b" ET", font)


def _shown(text: str, size: int, share: float) -> bytes:
    shown = []
    for piece in re.split(r"([_^]\{.*?\})", text):
        rise = {"^{": 0.35, "_{": -0.15}.get(piece[:2], 0) * size
        inner = piece[2:-1] if rise else piece
        escaped = inner.encode("cp1252").translate(_ESCAPED)
        shown.append(b"/F %g Tf %g Ts (%s) Tj" % (size * share if rise else size, rise, escaped))
    return b" ".join(shown)
