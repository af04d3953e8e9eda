"""Decisions: values in, a decision with its reason out. No database, network or terminal."""
