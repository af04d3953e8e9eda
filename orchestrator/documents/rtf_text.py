"""The text of RTF files."""

from __future__ import annotations

from orchestrator.documents.encoding import clean
from orchestrator.documents.extras import require
from orchestrator.documents.office import damaged
from orchestrator.documents.types import DocumentProblem, ExtractionError


def extract(data: bytes, encoding: str | None, most: int = 0) -> tuple[str, dict[str, object]]:
    """Raises ExtractionError (encoding, unreadable, unsupported)."""
    del most  # it has no more characters than bytes
    striprtf = require("striprtf.striprtf", "RTF", "office")
    if not data.lstrip().startswith(b"{\\rtf"):
        raise damaged("RTF document")
    try:
        # RTF is ASCII; what is not says itself which code page it is in.
        text = striprtf.rtf_to_text(data.decode("latin-1"), encoding=encoding or "cp1252", errors="strict")
    except (UnicodeDecodeError, LookupError) as error:
        raise ExtractionError(
            DocumentProblem.ENCODING,
            f"Some of its text is not in the encoding that it declares ({error}); save it again, or set `encoding`.",
        ) from error
    except MemoryError:
        raise
    except Exception as error:
        raise damaged("RTF document") from error
    return clean("\n".join(line.rstrip() for line in text.split("\n"))).strip(), {}
