"""Doors: other protocols to start runs and answer questions; each is an extra."""
