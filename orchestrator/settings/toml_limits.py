"""Limits that keep the standard library's TOML parser fast."""

from __future__ import annotations

import re

MAX_BYTES = 1_000_000
"""Maximum bytes of a settings file. PyYAML needs one second for a quarter of this size."""
MAX_KEY_PARTS = 50
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
MANY_PARTS = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}}")
"""Matches a key with over `MAX_KEY_PARTS` parts. The parser's time and memory grow with the square of the number."""
