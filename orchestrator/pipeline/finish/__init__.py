"""Merging of outcomes into one file in input order, and its delivery as the job file says."""
