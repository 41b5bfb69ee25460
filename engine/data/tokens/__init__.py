"""Tokenize records to the examples of each task, and show records with their targets."""
