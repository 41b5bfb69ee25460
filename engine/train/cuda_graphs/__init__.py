"""Fast mode: a micro-batch as two CUDA graphs, one forward and one backward, on static shapes."""
