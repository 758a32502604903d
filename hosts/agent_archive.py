"""The agent as one file to send: a zip of hosts/agent and pynvml.py that any Python from 3.8 on runs.

The same sources give the same bytes, so the name by content hash tells whether a host already has it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

AGENT_DIRECTORY = Path(__file__).parent / "agent"
_MAIN = b"from agent.__main__ import main\n\nmain()\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold


@dataclass(frozen=True)
class AgentArchive:
    """The archive's bytes, the first 16 hex digits of their sha256, and the file name on the host."""

    content: bytes
    digest: str
    name: str


@functools.cache
def build_archive() -> AgentArchive:
    """Build it once per process. Raises ModuleNotFoundError where nvidia-ml-py is not installed."""
    members = {"__main__.py": _MAIN, "pynvml.py": _find_pynvml().read_bytes()}
    for path in AGENT_DIRECTORY.glob("*.py"):
        members[f"agent/{path.name}"] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # Unix, whatever builds it
            archive.writestr(entry, members[name])
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return AgentArchive(content=content, digest=digest, name=f"agent-{digest}.pyz")


def _find_pynvml() -> Path:
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("pynvml is missing: install nvidia-ml-py")
    return Path(found.origin)
