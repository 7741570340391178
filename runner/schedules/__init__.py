"""Schedules: runs that start at times, by a cron expression or an interval."""
