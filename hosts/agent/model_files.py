"""Whether the files of a model can be opened at all.

vLLM 0.25.1 on an H200 called a weights file of mode 0600 of another user "No such file" (measured).
"""

from __future__ import annotations

import os
from typing import Optional, Sequence

NEEDED = (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja", ".tiktoken", ".gguf", ".pt")
FILES = 2000


def find_unreadable(directory: str, names: Optional[Sequence[str]] = None) -> Optional[str]:
    """Why the first such file of a model directory (or a single file) cannot be opened. None: all can."""
    if names is None:
        if not os.path.isdir(directory):
            return _try_to_open(directory)
        try:
            names = sorted(os.listdir(directory))
        except OSError as error:
            return f"the directory cannot be read: {error.strerror}"
    needed = [name for name in names if name.endswith(NEEDED)]
    for name in needed[:FILES]:
        reason = _try_to_open(os.path.join(directory, name))
        if reason is not None:
            return reason
    return None


def _try_to_open(path: str) -> Optional[str]:
    """Opened for real: modes, lists of rights and a squashed root all answer alike. A pipe does not hold this up."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except FileNotFoundError:
        return f"{os.path.basename(path)} is a link to nothing"
    except OSError as error:
        return f"{os.path.basename(path)} cannot be read: {error.strerror}"
    return None
