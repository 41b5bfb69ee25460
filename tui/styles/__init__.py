"""Stylesheets."""
