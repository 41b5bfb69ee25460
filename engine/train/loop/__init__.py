"""The optimizer step in the Hugging Face loop: hooks, optimizer, update gate, metrics, record."""
