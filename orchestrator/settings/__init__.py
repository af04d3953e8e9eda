"""User input and the places of state: orch.toml, job files, models, the home."""
