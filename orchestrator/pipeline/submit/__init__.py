"""Submission: rows become shards and batches, as far as budgets, quotas and the canary allow."""
