"""The agent's state machine: `step(definition, state, event) -> (state, commands)`. Pure.

No client, clock, randomness or logging: the shell around it (`runner.agent.drive`) carries the
commands out and reports what happened as events.
"""
