"""Column types that store the same values on every database."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from msgspec.structs import fields
from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Integer,
    Text,
    TypeDecorator,
)

from orchestrator.core.model import PICO, Usage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Rows settled together have the same time, so few conversions are needed.
@lru_cache(maxsize=1024)
def _instant(micros: Any | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=int(micros))


def _dollars(picos: Any | None) -> Decimal | None:
    return None if picos is None else (int(picos) * PICO).normalize()


class Instant(TypeDecorator[datetime]):
    """An aware UTC time as microseconds since 1970: the same number on every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else (value - _EPOCH) // timedelta(microseconds=1)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None]:
        return _instant


class Money(TypeDecorator[Decimal]):
    """US dollars as whole picodollars, so that sums are exact even on a database without decimals."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> int | None:
        return None if value is None else int(value / PICO)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Decimal | None]:
        return _dollars


class Names(TypeDecorator[tuple[str, ...]]):
    """Names in a fixed order as compact JSON, so that equal tuples are equal text. NULL stands for no names."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: tuple[str, ...] | None, dialect: Dialect) -> str | None:
        return json.dumps(value, separators=(",", ":")) if value else None

    def process_result_value(self, value: Any | None, dialect: Dialect) -> tuple[str, ...]:
        return () if value is None else tuple(json.loads(value))


class Words(TypeDecorator[str]):
    """Text for people, often from outside orch. NUL and lone surrogates, which databases reject, are replaced."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


# SQLite assigns row ids only to INTEGER, not to BIGINT.
Serial = BigInteger().with_variant(Integer(), "sqlite")


def more_counts() -> list[Column[int]]:
    """Return new columns for the fields of `Usage` after the first three. Each table names the first three itself."""
    return [Column(count.name, Integer, nullable=False, server_default="0") for count in fields(Usage)[3:]]
