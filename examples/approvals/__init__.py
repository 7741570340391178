"""An approval service as people would write it, and a graph that needs one."""
