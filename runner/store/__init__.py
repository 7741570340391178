"""Storage of runs: `interface` defines a store, `memory` is the reference, `redis` serves workers."""
