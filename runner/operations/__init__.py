"""Operations on runs: answer, retry, fork, migrate, remove, check a deploy."""
