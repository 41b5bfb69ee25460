"""Records of imported configurations, compared with what the other tools make of them."""
