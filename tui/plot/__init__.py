"""Plots in the terminal: from series of numbers to character cells."""
