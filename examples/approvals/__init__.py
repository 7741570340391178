"""An approval service with a page, and a graph that asks it."""
