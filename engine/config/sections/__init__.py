"""Sections of the configuration, and the types of their values."""
