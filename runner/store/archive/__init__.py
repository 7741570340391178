"""The archive: complete exports of ended runs, kept after the runs have left the store.

An archived run is the JSON that `runner runs export` writes of an outermost run, with all runs inside it.
Writing is at least once: a run that is written again replaces its earlier export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.store.archive.interface import Archive

POSTGRES = ("postgres://", "postgresql://")


def open_archive(target: str) -> Archive:
    """Open the archive in a folder, or in a Postgres database by its URL. Nothing is connected yet.

    Raises:
        MissingExtra: the package for Postgres is not installed.
    """
    # The imports are here because few programs need either.
    if not target.startswith(POSTGRES):
        from runner.store.archive.folder import FolderArchive  # noqa: PLC0415 - see above

        return FolderArchive(target)
    from runner.store.archive.postgres import PostgresArchive  # noqa: PLC0415 - see above

    return PostgresArchive(target)
