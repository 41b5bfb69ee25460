"""Contrastive losses and pooling as pure tensor functions."""
