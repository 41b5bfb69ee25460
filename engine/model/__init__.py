"""Loading, quantizing and adapting models."""
