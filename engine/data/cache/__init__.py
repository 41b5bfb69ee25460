"""Tokenized data on disk, found again by the content of everything that they depend on."""
