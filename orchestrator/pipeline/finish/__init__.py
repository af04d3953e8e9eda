"""Outcomes → one file in input order, put where the job file wants it."""
