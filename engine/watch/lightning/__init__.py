"""Lightning trainers under control, through a callback."""
