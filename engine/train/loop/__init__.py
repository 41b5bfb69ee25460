"""The training step: the hooks into the Hugging Face loop, update gate, metrics, record."""
