"""Steps before a run starts: find its start adapter, and plan its length and memory."""
