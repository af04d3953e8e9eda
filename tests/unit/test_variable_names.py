"""Names of variables, told from secrets."""

from __future__ import annotations

import pytest

from orchestrator.core.variable_names import variable_problem


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "openai_key_2", "MyCompanysOpenAIKey2026", "WEBHOOK_SECRET_OF_2026"]
)
def test_the_name_of_a_variable_is_taken(name: str) -> None:
    assert variable_problem(name) is None


@pytest.mark.parametrize(
    "secret", ["whsec_abc", "gsk_a1b2c3d4e5f6g7h8i9", "0123456789abcdef0123456789abcdef", "aB3dE6gH9jK2mN5pQ8sT"]
)
def test_a_secret_in_the_form_of_a_name_is_not_repeated(secret: str) -> None:
    problem = variable_problem(secret)
    assert problem is not None
    assert "looks like the secret itself" in problem
    assert secret not in problem
