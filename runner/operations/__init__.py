"""What people do to runs: answer, retry, fork, migrate, remove, check a deploy."""
