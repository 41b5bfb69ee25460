"""Screens made of plots."""
