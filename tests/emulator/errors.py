"""What the providers say when they refuse: one exception, and the bodies that they send for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

HTML_502 = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n"
    b"<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>cloudflare</center>\r\n</body>\r\n</html>\r\n"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """The inner object of an OpenAI error body."""

    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None

    def json(self) -> Json:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


@dataclass(slots=True)
class Refusal(Exception):
    """A call that is answered with an error. `body` is its JSON where it has a shape of its own."""

    status: int
    problem: Problem
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None


def refuse(status: int, message: str, *, param: str | None = None, code: str | None = None) -> Refusal:
    return Refusal(status, Problem(message, param=param, code=code))


_QUOTA = "You exceeded your current quota, please check your plan and billing details."

PROBLEMS: dict[str, Problem] = {
    "400": Problem("The request is not valid.", code="invalid_value"),
    "401": Problem("Incorrect API key provided.", code="invalid_api_key"),
    "403": Problem("You are not allowed to do this.", code="permission_denied"),
    "404": Problem("Not found."),
    "408": Problem("Request timed out.", "timeout"),
    "409": Problem("The resource has changed in the meantime."),
    "413": Problem("The batch input file is larger than the 209715200 maximum for the model"),
    "429": Problem("Rate limit reached for requests.", "requests", None, "rate_limit_exceeded"),
    "500": Problem("The server had an error while processing your request. Sorry about that!", "server_error"),
    "502": Problem("Bad gateway.", "server_error"),
    "503": Problem("The engine is currently overloaded, please try again later.", "server_error", None, "overloaded"),
    "504": Problem("Gateway timeout.", "server_error"),
    "insufficient_quota": Problem(_QUOTA, "insufficient_quota", None, "insufficient_quota"),
    "resource_unavailable": Problem(
        "There are not enough resources for flex processing right now, please try again later.",
        "resource_unavailable",
        None,
        "resource_unavailable",
    ),
    "content_filter": Problem(
        "The response was filtered due to the prompt triggering the content management policy.",
        "invalid_request_error",
        "prompt",
        "content_filter",
    ),
    "context_length_exceeded": Problem(
        "This model's maximum context length is 128000 tokens. Please reduce the length of the messages.",
        "invalid_request_error",
        "messages",
        "context_length_exceeded",
    ),
}
"""By status, or by the code of an error that shares its status with others."""

STATUS_OF = {
    "insufficient_quota": 429,
    "resource_unavailable": 429,
    "content_filter": 400,
    "context_length_exceeded": 400,
}

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def mistral_error(status: int, problem: Problem) -> Json:
    """FastAPI's `detail` (recorded for a bad key); an object for what its users see beside it, as a rate limit."""
    if status < 429 and problem.code not in _MISTRAL_OBJECTS:
        return {"detail": problem.message}
    kind = {429: "rate_limited", 503: "service_unavailable"}.get(status, "internal_server_error")
    kind = problem.code if problem.code in _MISTRAL_OBJECTS else kind
    code = {"rate_limited": "1300"}.get(kind, "3000")
    return {"object": "error", "message": problem.message, "type": kind, "param": None, "code": code}


def failed_row(custom_id: Any, status: int, problem: Problem) -> Json:
    """A line of Together's error file: a row's id, and why it failed (docs.together.ai, manage batch jobs)."""
    code = problem.code or ANTHROPIC_TYPES.get(status, problem.type)
    return {"custom_id": custom_id, "error": {"message": problem.message, "code": code}}


_MISTRAL_OBJECTS = ("insufficient_quota", "service_tier_capacity_exceeded")


_XAI_CODES = {
    400: "Client specified an invalid argument",
    403: "The caller does not have permission to execute the specified operation",
    404: "Some requested entity was not found",
    429: "Some resource has been exhausted",
    503: "The service is currently unavailable",
}


def xai_error(status: int, problem: Problem) -> tuple[int, Json]:
    """Two texts, of which the code is a sentence; a key that is not accepted comes with status 400."""
    status = 400 if status == 401 else status
    return status, {"code": _XAI_CODES.get(status, "Internal error"), "error": problem.message}


_RPC = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_RPC_NUMBERS = {400: 3, 401: 16, 403: 7, 404: 5, 408: 4, 409: 10, 429: 8, 500: 13, 503: 14, 504: 4}


def gemini_error(status: int, problem: Problem) -> Json:
    """Google's error; a key that is not valid is recorded with status 400."""
    if status == 401:
        status, message = 400, "API key not valid. Please pass a valid API key."
    else:
        message = problem.message
    word = problem.code if problem.code and problem.code.isupper() else _RPC.get(status, "UNKNOWN")
    return {"error": {"code": status, "message": message, "status": word}}


def rpc_number(status: int) -> int:
    """Google's number for an HTTP status, as rows of a batch have it."""
    return _RPC_NUMBERS.get(status, 3 if status < 500 else 13)


def problem_of(status: int, code: str | None = None) -> Problem:
    """What is said with a status where nothing else is asked for."""
    return PROBLEMS.get(code or "") or PROBLEMS.get(str(status)) or Problem(f"Status {status}.", "server_error")


def anthropic_error(status: int, message: str, request_id: str | None) -> Json:
    kind = ANTHROPIC_TYPES.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
