"""Small documents that take a reader without limits gigabytes, minutes, or the process itself."""

from __future__ import annotations

import io
import zipfile
import zlib

_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_MC = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"


def word(body: str, **parts: str) -> bytes:
    """A Word document with this body, and further parts such as `header="<w:hdr>...</w:hdr>"`."""
    related = "".join(
        f'<Relationship Id="r{i}" Type="{_OFFICE}/{kind.rstrip("0123456789")}" Target="{kind}.xml"/>'
        for i, kind in enumerate(parts)
    )
    document = f"<w:document {_W} {_MC}><w:body>{body}</w:body></w:document>"
    main = f'<Relationship Id="r" Type="{_OFFICE}/officeDocument" Target="word/document.xml"/>'
    return zipped(
        {
            "_rels/.rels": f'<Relationships xmlns="{_RELATIONS}">{main}</Relationships>',
            "word/_rels/document.xml.rels": f'<Relationships xmlns="{_RELATIONS}">{related}</Relationships>',
            "word/document.xml": document,
            **{f"word/{name}.xml": text.replace("<w:hdr>", f"<w:hdr {_W}>") for name, text in parts.items()},
        }
    )


def zipped(entries: dict[str, str]) -> bytes:
    """A zip archive of texts."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in entries.items():
            archive.writestr(name, text)
    return out.getvalue()


def text_boxes(depth: int) -> bytes:
    """A text box in a text box in a text box …"""
    opening = "<w:p><w:r><w:pict><w:txbxContent>"
    closing = "</w:txbxContent></w:pict></w:r></w:p>"
    return word(opening * depth + "<w:p><w:r><w:t>deep</w:t></w:r></w:p>" + closing * depth)


def tables(depth: int) -> bytes:
    """A table in a cell of a table in a cell …"""
    opening, closing = "<w:tbl><w:tr><w:tc>", "</w:tc></w:tr></w:tbl>"
    return word(opening * depth + "<w:p><w:r><w:t>deep</w:t></w:r></w:p>" + closing * depth)


def pdf(*objects: bytes) -> bytes:
    """A PDF of these objects; the first is the catalog."""
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(b"%010d 00000 n \n" % len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1) + b"".join(places)
    end = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    return out + table + end % (len(places) + 1, len(out))


def stream(data: bytes, about: bytes = b"") -> bytes:
    """A stream object."""
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), about, data)


_CATALOG = (
    b"<< /Type /Catalog /Pages 2 0 R >>",
    b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
    b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
)


def page(resources: bytes) -> bytes:
    """The one page, whose content is the fifth object."""
    return b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Resources << %s >> /Contents 5 0 R >>" % resources


def form_objects(levels: int, width: int, padding: int = 0) -> bytes:
    """A page that draws an object `width` times, which draws another as often, and so on.

    With `padding`, each has so many operators that do nothing: it then takes time for memory to fill.
    """
    objects = [*_CATALOG, page(b"/XObject << /X 6 0 R >>"), stream(b"/X Do " * width)]
    for level in range(levels):
        about = b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X %d 0 R >> >>"
        objects.append(stream(b"q Q " * padding + b"/X Do " * width, about % (7 + level)))
    last = b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /Font << /F 3 0 R >> >>"
    objects.append(stream(b"BT /F 9 Tf (x) Tj ET", last))
    return pdf(*objects)


def deflated_twice(size: int) -> bytes:
    """A page whose content, unpacked twice, has so many bytes."""
    packer = zlib.compressobj(9)
    line = b"BT /F1 9 Tf 1 1 Td (" + b"x" * 10_000 + b") Tj ET\n"
    once = b"".join(packer.compress(line) for _ in range(size // len(line))) + packer.flush()
    page = (
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Resources << /Font << /F1 3 0 R >> >> /Contents 5 0 R >>"
    )
    return pdf(*_CATALOG, page, stream(zlib.compress(once, 9), b"/Filter [/FlateDecode /FlateDecode]"))
