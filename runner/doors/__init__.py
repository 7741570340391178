"""Doors: other protocols by which runs are started and questions answered; an extra each."""
