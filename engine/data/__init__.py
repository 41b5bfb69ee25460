"""Training data: sources, record formats, tokenization, batches and their order."""
