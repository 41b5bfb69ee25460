"""Cache of tokenized data on disk; an entry is found by hashes of everything that determines it."""
