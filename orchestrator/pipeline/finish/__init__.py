"""Merging of outcomes into one file in input order, and delivery of that file as the job file says."""
