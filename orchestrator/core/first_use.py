"""Regular expressions compiled at their first use, as most commands need few patterns."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Pattern:
    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._arguments), name)
        setattr(self, name, value)  # from now on as quick as the pattern's own
        return value


def regex(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern that is compiled when its first method is called."""
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))
