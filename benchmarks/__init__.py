"""Measurements: each a ratio against something named, taken side by side in one run. Numbers: README.md."""
