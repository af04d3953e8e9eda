"""Limits that keep the standard library's TOML parser fast."""

from __future__ import annotations

import re

MAX_BYTES = 1_000_000
"""Largest settings file; PyYAML needs a second for a quarter of this size."""
MAX_KEY_PARTS = 50
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
MANY_PARTS = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}}")
"""Matches a key with too many parts: the parser's time and memory grow with the square of their number."""
