"""An agent that pays refunds; above a limit, two desks must agree."""
