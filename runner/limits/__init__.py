"""Flow control: limits of concurrency and rate, and of open runs."""
