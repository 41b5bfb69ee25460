"""Connections to runs on other machines through the ssh client of the user."""
