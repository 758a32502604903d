"""The verb table.

A new verb is one line here and one function that takes a Call and returns the result's body.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

from .call import Call
from .facts import facts
from .launch import launch
from .observe import observe, status
from .probe import probe
from .stop import hurry, send_signal, stop
from .sweep import sweep
from .tail import tail
from .watch import watch

Verb = Callable[[Call], Dict[str, Any]]

# `cancel` is the server's own: it is about requests, not about the host.
VERBS: Dict[str, Verb] = {
    "facts": facts,
    "observe": observe,
    "launch": launch,
    "status": status,
    "stop": stop,
    "hurry": hurry,
    "signal": send_signal,
    "sweep": sweep,
    "tail": tail,
    "probe": probe,
    "watch": watch,
}
# Begun changes are carried through after the channel closed: a half-done stop is worse than a late one.
CHANGING = frozenset({"launch", "stop", "hurry", "signal", "sweep"})
