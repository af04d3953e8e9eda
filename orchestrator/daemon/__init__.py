"""The process that runs unattended: its loop, lock, schedules, monitor, and the channels to people."""
