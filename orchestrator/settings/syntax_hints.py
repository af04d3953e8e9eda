"""Cures for the usual slips in YAML and TOML: the line as it was probably meant. Pure."""

from __future__ import annotations

import json
import re

_YAML_PAIR = re.compile(r"(\s*(?:- +)?)([A-Za-z_][\w-]*): +(\S.*?)\s*")
_TOML_PAIR = re.compile(r"(\s*[A-Za-z0-9_.-]+)\s*=\s*([A-Za-z/.~$<%][^#\"']*?)\s*(?:#.*)?")
_TOML_WORDS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}
_STARTS = "\"'[{0123456789"
MOST = 200
"""Longest line that is shown again."""


def yaml_hint(line: str) -> str | None:
    """Return a cure for a line that YAML does not accept, or None."""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces: YAML allows no tabs there"
    found = _YAML_PAIR.fullmatch(line)
    if found is None or len(line) > MOST or found[3][0] in "\"'|>[{&":
        return None
    if found[3][0] in "*@`%!" or ": " in found[3] or found[3].endswith(":") or " #" in found[3]:
        return f"quote the text:  {found[1].strip()}{' ' * bool(found[1].strip())}{found[2]}: {_quoted(found[3])}"
    return None


def toml_hint(line: str) -> str | None:
    """Return a cure for a line that TOML does not accept, or None."""
    if len(line) > MOST:
        return None
    if found := _TOML_PAIR.fullmatch(line):
        meant = _TOML_WORDS.get(found[2].lower()) or _quoted(found[2])
        return f"write  {found[1].strip()} = {meant}"
    if found := _YAML_PAIR.fullmatch(line):
        return f"TOML writes  {found[2]} = {found[3] if found[3][0] in _STARTS else _quoted(found[3])}"
    return None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
