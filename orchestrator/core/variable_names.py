"""Checks that a setting has the name of an environment variable, and not the secret itself. Pure.

A user may write a secret in place of the name, so no message repeats the text.
"""

from __future__ import annotations

from orchestrator.core.lazy_patterns import regex

_REFERENCE = regex(r"\$\{?([A-Z][A-Z_]{,60})\}?")
_NAME = regex(r"[A-Za-z_][A-Za-z0-9_]{,99}")
_SECRET = regex(
    r"whsec_.*"  # of webhooks
    r"|(?:sk|rk|gsk|csk|hf|r8|fw|ghp|glpat|xai|tgp|pplx)_(?=\w*\d)\w{16,}|AKIA[0-9A-Z]{16}|AIza\w{20,}"
    r"|[0-9a-f]{32,}"
    r"|(?:\w*_)?(?=[A-Za-z0-9]*[a-z])(?=[A-Za-z0-9]*[A-Z])(?=[A-Za-z0-9]*\d[A-Za-z])[A-Za-z0-9]{20,}"
)
"""Matches secrets that could be names: by their prefixes, as long hexadecimal numbers, or by mixed cases and digits.

Digits only at the end do not make a secret: MyCompanysOpenAIKey2026.
"""


def variable_problem(text: str) -> str | None:
    """Return why a text is not the name of a variable, with the cure; None if it may be a name."""
    if bare := _REFERENCE.fullmatch(text):
        return f"is not the name of an environment variable: write {bare[1]} alone"
    if _SECRET.fullmatch(text):
        return (
            "is not the name of an environment variable but looks like the secret itself: "
            "put the secret into a variable where orch starts, and write that variable's name, such as OPENAI_API_KEY"
        )
    return None if _NAME.fullmatch(text) else "is not the name of an environment variable, such as OPENAI_API_KEY"
