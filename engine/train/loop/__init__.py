"""The optimizer step: hooks into the Hugging Face loop, step loop, update gate, metrics, record."""
