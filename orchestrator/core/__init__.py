"""Words, errors, clocks and limits on untrusted input, shared by every room. Imports no other room."""
