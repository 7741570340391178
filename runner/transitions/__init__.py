"""The transitions of runs. Whoever is not of this room takes them from `runner/schedule.py`.

`steps` is what transitions are made of, `arrivals` and `maps` say what becomes ready; `closing` is how
each transition ends. Above these are the transitions: those of `runs`, and in the life of a node
`claims`, `questions`, `waits` and `ends`; then what `timers` do. Nothing imports what is above it. Pure.
"""
