"""Typed wire messages, commands and their codec; no sockets, no torch."""
