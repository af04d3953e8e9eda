"""What users write, and where state lies: orch.toml, job files, models, the home."""
