"""An entry's body for people. Values of variables stay hidden from who may not see them elsewhere."""

import json

from audit.models import Entry
from audit.record import content

HIDDEN = "••••"
SEE_VALUES = "deployments.see_environment_values"


def entry_page(entry: Entry, user) -> dict:
    body = content(entry)
    if not user.has_perm(SEE_VALUES, entry):
        body = without_values(body)
    return {
        "entry": entry,
        "content": body,
        "before": as_text(body.get("before")),
        "after": as_text(body.get("after")),
    }


def without_values(value):
    """Return the same with the values below every `env` replaced."""
    if isinstance(value, dict):
        return {
            key: dict.fromkeys(part, HIDDEN) if key == "env" and isinstance(part, dict) else without_values(part)
            for key, part in value.items()
        }
    return [without_values(part) for part in value] if isinstance(value, list) else value


def as_text(value) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) if value else ""
