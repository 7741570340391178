"""The Celery application that this repository deploys; copy it into a project of your own."""
