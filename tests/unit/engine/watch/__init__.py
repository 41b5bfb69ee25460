"""Parts of the watching of foreign trainers."""
