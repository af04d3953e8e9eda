"""Legacy form fields of a Word document. Their ticks and chosen entries are not in the document's text."""

from __future__ import annotations

SYMBOLS = dict.fromkeys(("F052", "F0FC", "F0FE", "F054"), "☒") | dict.fromkeys(("F06F", "F0A8", "F071"), "☐")
"""Boxes and ticks in the Wingdings fonts, by character code."""
_OFF = ("0", "false", "off")


def is_on(value: str) -> bool:
    """Return True unless a property's value switches it off; a property without a value is on."""
    return value not in _OFF


class FormField:
    def __init__(self) -> None:
        self._kind = ""
        self._default = self._chosen = ""
        self._entries: list[str] = []

    def take(self, name: str, value: str) -> None:
        match name:
            case "checkBox" | "ddList":
                self._kind = name
            case "default":
                self._default = value or "1"
            case "checked" | "result":
                self._chosen = value or "1"
            case "listEntry":
                self._entries.append(value)

    def text(self) -> str:
        """Return the text that the page shows; empty if the document repeats it after the field."""
        chosen = self._chosen or self._default or "0"
        if self._kind == "checkBox":
            return "☒" if is_on(chosen) else "☐"
        if self._kind == "ddList" and chosen.isdigit() and int(chosen) < len(self._entries):
            return self._entries[int(chosen)]
        return ""
