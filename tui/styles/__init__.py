"""The stylesheet and the colour themes of the app."""
