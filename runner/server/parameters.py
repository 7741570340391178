"""Types of plain texts that routes take from a form, or from the query of the address."""

from __future__ import annotations

from typing import Annotated

from fastapi import Form, Query

FormText = Annotated[str, Form()]
QueryText = Annotated[str, Query()]
OptionalQueryText = Annotated[str | None, Query()]
