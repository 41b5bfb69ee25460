"""First: chooses the settings of somebody's first configuration from their data and card."""
