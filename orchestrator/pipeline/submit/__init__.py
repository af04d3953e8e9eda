"""Rows → shards → batches, as far as budgets, quotas and the canary let them go."""
