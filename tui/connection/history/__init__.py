"""Reading of very long journals by several processes."""
