"""Where runs live: `interface` says what a store does, `memory` is the reference, `redis` serves workers."""
