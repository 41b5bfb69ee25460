"""Inputs that nobody wrote, for everything that reads bytes from elsewhere."""
