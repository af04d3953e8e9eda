"""gc: what `[retention]` lets go, disk room, backups."""
