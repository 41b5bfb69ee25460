"""Screens that show a filterable table, one row per item."""
