"""What a graph is: its model, cycles, policies, fingerprint and the registry of graphs."""
