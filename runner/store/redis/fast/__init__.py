"""The fast path: claims and settles of most nodes, one script each, planned on what the claim has read."""
