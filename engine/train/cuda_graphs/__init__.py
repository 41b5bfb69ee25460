"""Fast mode: runs a micro-batch as two CUDA graphs, forward and backward, on static shapes."""
