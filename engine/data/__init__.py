"""Record formats, sources and collators."""
