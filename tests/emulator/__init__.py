"""A provider that misbehaves: hosted Batch APIs over real HTTP, with their own clock, scripted faults and a bill.

It is written from the providers' wire formats and imports nothing of the package that it tests.
docs/reference/emulator.md says how to script it; `tests.emulator.client` starts it.
"""
