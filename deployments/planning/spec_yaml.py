"""Reads and writes a spec as YAML, and gives the mapping that is stored canonically.

YAML from people is bounded (64 KiB), read without Python objects, and refused where it repeats a key or uses
anchors.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import yaml

from deployments.planning.spec import DeploymentSpec, Problem, Problems
from deployments.planning.spec_parse import FIELDS, parse_spec

if TYPE_CHECKING:
    from collections.abc import Hashable

MAX_YAML = 64 * 1024
SPEC_FORM = 1


class _RefusedError(Exception):
    """Carries one Problem out of the YAML reader."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, minus repeated keys and anchors (of which a few bytes can stand for gigabytes)."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            line = event.start_mark.line + 1
            message = f"Line {line} uses an anchor or alias, which is not allowed here."
            raise _RefusedError(Problem(path="", code="YAML_ANCHOR", message=message, line=line))
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(getattr(key_node, "value", ""))
            if key in seen:
                line = key_node.start_mark.line + 1
                message = f"Line {line} gives {key[:80]} a second time."
                raise _RefusedError(Problem(path=key[:80], code="YAML_KEY_TWICE", message=message, line=line))
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def spec_from_yaml(text: str) -> DeploymentSpec | Problems:
    """Read a spec from YAML text. Problems of the text itself carry the line, counted from 1."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_YAML:
        return _one("YAML_TOO_LARGE", "The document is larger than 64 KiB.")
    try:
        # A subclass of SafeLoader: it makes no objects.
        document = yaml.load(text, Loader=_StrictLoader)  # noqa: S506
    except _RefusedError as refusal:
        return Problems(items=(refusal.problem,))
    except yaml.MarkedYAMLError as problem:
        return _syntax(problem)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as problem:
        reason = (
            "It is nested too deeply" if isinstance(problem, RecursionError) else str(problem).split("\n", 1)[0][:160]
        )
        return _one("YAML_UNREADABLE", f"The document cannot be read as YAML: {reason}.")
    if document is None:
        return _one("YAML_EMPTY", "The document is empty.")
    return parse_spec(document)


def _one(code: str, message: str, *, line: int | None = None) -> Problems:
    return Problems(items=(Problem(path="", code=code, message=message, line=line),))


def _syntax(problem: yaml.MarkedYAMLError) -> Problems:
    mark = problem.problem_mark or problem.context_mark
    line = mark.line + 1 if mark else None
    what = (problem.problem or "it is not YAML").strip()[:160]
    where = f"Line {line}" if line else "The document"
    return _one("YAML_SYNTAX", f"{where} is not valid YAML: {what}.", line=line)


def spec_to_mapping(spec: DeploymentSpec) -> dict[str, Any]:
    """Return every field with its value, for `audit.canonical` (form SPEC_FORM).

    Text, whole numbers, lists and mappings only.
    """
    return {name: _plain(getattr(spec, name)) for name in FIELDS}


def spec_to_yaml(spec: DeploymentSpec) -> str:
    """Write a spec so that `spec_from_yaml` gives the same spec; fields at their default are left out."""
    blank = DeploymentSpec(name="", host="", model="", served_model_name="")
    fields: dict[str, Any] = {}
    for name in FIELDS:
        value = getattr(spec, name)
        if value != getattr(blank, name):
            plain = _plain(value)
            fields[name] = float(plain) if isinstance(value, Decimal) else plain
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, default_flow_style=False, width=10_000)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in sorted(value.items())}
    return value
