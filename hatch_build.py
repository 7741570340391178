"""The addresses of the project: they are those of the repository and the site that a release is made for."""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    """Adds `Project-URL` lines from REPOSITORY_URL and SITE_URL, which the release workflow sets."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the addresses that are set; a build of anyone's own clone has none."""
        repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")
        site = os.environ.get("SITE_URL", "")
        urls = {"Documentation": site} if site else {}
        if repository:
            urls |= {
                "Source": repository,
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["urls"] = urls
