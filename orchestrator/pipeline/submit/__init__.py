"""Submission: turns rows into shards and batches, as far as budgets, quotas and the canary allow."""
