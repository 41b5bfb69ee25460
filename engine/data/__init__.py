"""Training data: sources, formats, chat templates, tokenization, screening, cache, batches."""
