"""One visit on a worker: the engine, leases, contexts, functions, conditions."""
