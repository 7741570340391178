"""Orders from a file, each checked by itself; one of them needs a person."""
