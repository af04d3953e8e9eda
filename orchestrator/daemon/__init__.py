"""The process that runs unattended: its loop, lock, schedules, monitor, and channels for messages to people."""
