"""The archive: where ended runs are kept after they have left the store, whole, as exports.

An archived run is the JSON that `runner runs export` writes of an outermost run, with all runs inside it.
Writing is at least once: a run that is written again replaces what was written before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.store.archive.interface import Archive

POSTGRES = ("postgres://", "postgresql://")


def open_archive(target: str) -> Archive:
    """Open what RUNNER_ARCHIVE names: a folder, or a Postgres database by its URL. Nothing is connected yet.

    Raises:
        MissingExtra: the package for Postgres is not installed.
    """
    # Imported here: few programs need either.
    if not target.startswith(POSTGRES):
        from runner.store.archive.folder import FolderArchive  # noqa: PLC0415 - see above

        return FolderArchive(target)
    from runner.store.archive.postgres import PostgresArchive  # noqa: PLC0415 - see above

    return PostgresArchive(target)
