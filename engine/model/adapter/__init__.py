"""Adapters: new ones, their targets, and existing ones to start from."""
