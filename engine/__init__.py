"""The engine: trains, journals every step, obeys commands. Importing this loads no torch."""
