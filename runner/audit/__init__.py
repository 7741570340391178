"""The audit: a signed hash tree over questions, votes, decisions and their use, verifiable offline."""
