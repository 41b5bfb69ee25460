"""Configurations of other training tools, read as configurations of fttui."""
