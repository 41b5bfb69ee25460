"""Losses and metrics as tensor functions, with their pooling, masks and gathering over ranks."""
