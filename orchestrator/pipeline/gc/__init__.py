"""Keeping house: what `[retention]` lets go, disk room, backups."""
