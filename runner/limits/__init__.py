"""Flow control: limits of concurrency and rate."""
