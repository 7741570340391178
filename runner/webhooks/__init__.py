"""Webhooks: notices sent as signed HTTP requests, with retries and a log of deliveries."""
