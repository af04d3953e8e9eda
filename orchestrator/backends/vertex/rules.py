"""Dialect of Vertex AI's batches beside Gemini's: fields without a counterpart, named before anything is sent."""

from __future__ import annotations

from orchestrator.policy.dialect.rules import TableRule

VERTEX_RULES: tuple[TableRule, ...] = ()
