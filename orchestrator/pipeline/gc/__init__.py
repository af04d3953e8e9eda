"""Retention, disk space and backups of a home."""
