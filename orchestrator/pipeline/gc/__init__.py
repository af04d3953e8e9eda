"""Retention, disk room and backups of a home."""
