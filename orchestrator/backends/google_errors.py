"""Converts row errors in Google's form (google.rpc.Status) to HTTP statuses. Pure."""

from __future__ import annotations

from orchestrator.backends import lenient
from orchestrator.core.error_body import read_error_value

CANCELLED = 1
_HTTP = {CANCELLED: 499, 2: 500, 3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 501,
         13: 500, 14: 503, 15: 500, 16: 401}  # fmt: skip
_LEAST_HTTP = 400
UNKNOWN_STATUS = 502


def row_status(error: object) -> int:
    """Return the HTTP status of a row's error, from the error's code or text."""
    code = lenient.count(lenient.mapping(error).get("code")) or 0
    if code >= _LEAST_HTTP:
        return code
    return _HTTP.get(code) or read_error_value({"error": error}).status or UNKNOWN_STATUS
