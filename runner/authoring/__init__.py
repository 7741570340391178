"""How graphs are written: the builder, lint and drawing."""
