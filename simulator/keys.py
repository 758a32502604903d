"""Keys that stay the same over restarts: made once, kept beside what they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh

if TYPE_CHECKING:
    from pathlib import Path


def load_or_make_key(path: Path) -> asyncssh.SSHKey:
    """Give the ed25519 key in `path` (OpenSSH form, 0600, with its .pub); made where there is none."""
    if path.exists():
        return asyncssh.read_private_key(str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    key = asyncssh.generate_private_key("ssh-ed25519")
    path.touch(mode=0o600)
    path.write_bytes(key.export_private_key())
    path.with_name(path.name + ".pub").write_bytes(key.export_public_key())
    return key
