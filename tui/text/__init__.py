"""Formatting of numbers and times, and the glyphs of the app."""
