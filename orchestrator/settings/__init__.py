"""User input and the locations of state: orch.toml, job files, models, the home."""
