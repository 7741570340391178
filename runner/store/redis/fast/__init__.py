"""The fast path: claims and settles of most nodes, one script each, planned on the claim's reads."""
