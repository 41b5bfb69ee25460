"""Formats of numbers and times, the glyphs of the app, and the escaping of control characters."""
