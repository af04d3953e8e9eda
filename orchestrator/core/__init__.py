"""Vocabulary, errors, clocks and limits on untrusted input, shared by all packages. Imports no other package."""
