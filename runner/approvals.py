"""Rules of approvals: who may decide a question, how many, and how sure it must be who they are."""

from runner.records.approvals import DAY, HOUR, Auth, Principal, Rule

__all__ = ["DAY", "HOUR", "Auth", "Principal", "Rule"]
