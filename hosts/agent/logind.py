"""What systemd-logind does to a user's processes when the last session ends.

Read from its configuration: the commented line of the shipped logind.conf shows the default the distribution
compiled in.
"""

from __future__ import annotations

import glob
import os
from typing import Dict, List, Optional

from .proc import read_text

_FILES = ("/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf")
_DROP_INS = (
    "/usr/lib/systemd/logind.conf.d/*.conf",
    "/run/systemd/logind.conf.d/*.conf",
    "/etc/systemd/logind.conf.d/*.conf",
)
_SYSTEM_UID_LIMIT = 1000  # RemoveIPC leaves root and system users alone (logind.conf(5))


def read_policy(*, user: str, uid: int) -> Dict[str, Optional[bool]]:
    """kill_user_processes, linger, remove_ipc; None where the host does not say."""
    if not os.path.isdir("/run/systemd/system"):  # no logind: a logout ends nothing by itself
        return {"kill_user_processes": False, "linger": None, "remove_ipc": False}
    settings = _read_settings()
    kill = _as_flag(settings.get("KillUserProcesses"))
    if user in (settings.get("KillExcludeUsers") or "root").split():
        kill = False
    only = (settings.get("KillOnlyUsers") or "").split()
    if only and user not in only:
        kill = False
    remove = False if uid < _SYSTEM_UID_LIMIT else _as_flag(settings.get("RemoveIPC"))
    linger = os.path.exists(os.path.join("/var/lib/systemd/linger", user))
    return {"kill_user_processes": kill, "linger": linger, "remove_ipc": remove}


def _read_settings() -> Dict[str, str]:
    drop_ins: List[str] = []
    for pattern in _DROP_INS:
        drop_ins += glob.glob(pattern)
    drop_ins.sort(key=os.path.basename)
    texts = [read_text(path) or "" for path in [*_FILES, *drop_ins]]
    return parse_settings(texts)


def parse_settings(texts: List[str]) -> Dict[str, str]:
    """Settings of several files, later ones win; a commented line counts only while nothing is set."""
    found: Dict[str, str] = {}
    defaults: Dict[str, str] = {}
    for text in texts:
        for line in text.splitlines():
            name, separator, value = line.strip().partition("=")
            if not separator:
                continue
            if name.startswith("#"):
                defaults.setdefault(name[1:].strip(), value.strip())
            else:
                found[name.strip()] = value.strip()
    return {**defaults, **found}


def _as_flag(text: Optional[str]) -> Optional[bool]:
    if text is None:
        return None
    return text.lower() in ("yes", "true", "on", "1")
