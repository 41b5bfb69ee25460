"""The run configuration: schema, loader, checks, step plan and memory planning; no torch."""
