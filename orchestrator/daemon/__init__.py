"""The daemon, orch's unattended process: its loop, lock, schedules, monitor, and channels for messages to people."""
