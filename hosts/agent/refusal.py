"""A no with its reason. Verbs raise it, the server answers it: a refusal is a result for the caller.

Codes are stable; messages are one English sentence, the next step another.
"""

from __future__ import annotations

from typing import Any, Dict, Optional


class Refusal(Exception):
    """The verb was not carried out, or not wholly."""

    def __init__(
        self,
        code: str,
        message: str,
        next_step: str = "",
        numbers: Optional[Dict[str, Any]] = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.next_step = next_step
        self.numbers: Dict[str, Any] = numbers or {}

    def body(self) -> Dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "next_step": self.next_step,
            "numbers": self.numbers,
        }


def bad_request(message: str, **numbers: Any) -> Refusal:
    """The arguments make no sense: a defect of the caller."""
    return Refusal("BAD_REQUEST", message, "Correct the request; nothing was done.", numbers)
