"""Types of plain texts and numbers that routes take from a form, or from the query of the address."""

from __future__ import annotations

from typing import Annotated

from fastapi import Form, Query

FormText = Annotated[str, Form()]
FormNumber = Annotated[float | None, Form()]
QueryText = Annotated[str, Query()]
OptionalQueryText = Annotated[str | None, Query()]
