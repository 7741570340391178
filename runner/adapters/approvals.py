"""The answer to "may this tool call run?", strict: what was misspelt is no approval."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, StrictBool, TypeAdapter


class Approved(BaseModel):
    """The call may run, with other arguments if some are given."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["tool-approved"]
    override_args: dict[str, Any] | None = None


class Denied(BaseModel):
    """The call may not run; the model is told why."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["tool-denied"]
    message: str = "The tool call was denied."


approval: TypeAdapter[bool | Approved | Denied] = TypeAdapter(StrictBool | Approved | Denied)
"""True, false, or one of the two objects; its JSON Schema is what people are shown."""
