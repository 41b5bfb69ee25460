"""Render conversations with a chat template, and find the text that is learned."""
