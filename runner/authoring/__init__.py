"""Authoring of graphs: the builder, lint and drawing."""
