"""Commands at step boundaries: when they take effect, and how they are carried out."""
