"""Endpoints of webhooks that tell people of open questions, by Slack or by e-mail."""
