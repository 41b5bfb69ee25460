"""Handlers of the actions of the action table."""
