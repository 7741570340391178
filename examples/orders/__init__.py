"""Orders from a file, each checked on its own; one of them needs a person."""
