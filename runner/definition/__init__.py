"""Definition of a graph: its model, cycles, policies, fingerprint and the registry of graphs."""
