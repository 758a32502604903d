"""Model directories below the roots that an administrator set.

Configuration and weight bytes, nothing executed.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from .model_files import find_unreadable

DEPTH = 5  # ROOT/models--ORG--NAME/snapshots/REVISION/config.json of a Hugging Face cache is depth 3
DIRECTORIES = 5000
MODELS = 200
CONFIG_LIMIT = 64 << 10
# An answer is one line of at most 256 KiB.
CONFIGS_TOTAL = 128 << 10
_NO_MODELS = ("lost+found",)
_NO_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")


def find_models(roots: Sequence[str]) -> List[Dict[str, Any]]:
    """Entries of the `models` fact, in the order of their paths.

    Faults are told in `config_error`, never raised.
    """
    found: List[Dict[str, Any]] = []
    left = CONFIGS_TOTAL
    for directory, names in _walk(roots):
        if names is None:
            found.append(_closed(directory))
            continue
        config, error, size = read_config(os.path.join(directory, "config.json"))
        if size > left:
            config, error = None, "left out: the answer is full; name a narrower model root"
        else:
            left -= size
        files, total = weigh(directory, names)
        found.append(
            {
                "path": directory,
                "config": config,
                "config_error": error,
                "weight_bytes": total,
                "weight_files": files,
                "dtype_bytes": None,
                "unreadable": find_unreadable(directory, names),
            }
        )
        if len(found) >= MODELS:
            break
    return found


def _closed(directory: str) -> Dict[str, Any]:
    """The entry of a directory that this user may not look into: perhaps a model, and then one that cannot be used."""
    reason = "the directory cannot be read: Permission denied"
    nothing = {"config": None, "weight_bytes": None, "weight_files": None, "dtype_bytes": None}
    return {"path": directory, "config_error": reason, "unreadable": reason, **nothing}


def _walk(roots: Sequence[str]) -> Iterator[Tuple[str, Optional[List[str]]]]:
    """Directories with a config.json, not looked into any deeper; without names, those that are closed to this user."""
    waiting = [(root, 0) for root in roots if os.path.isabs(root)]
    seen: Set[Tuple[int, int]] = set()
    while waiting and len(seen) < DIRECTORIES:
        directory, depth = waiting.pop(0)
        try:
            identity = os.stat(directory)
            names = sorted(os.listdir(directory))
        except PermissionError:
            if os.path.basename(directory) not in _NO_MODELS:
                yield directory, None
            continue
        except OSError:
            continue
        if (identity.st_dev, identity.st_ino) in seen:
            continue  # a link that leads in a circle
        seen.add((identity.st_dev, identity.st_ino))
        if "config.json" in names:
            yield directory, names
        elif depth < DEPTH:
            paths = [os.path.join(directory, name) for name in names if not name.startswith(".")]
            waiting += [(path, depth + 1) for path in paths if os.path.isdir(path)]


def read_config(path: str) -> Tuple[Optional[Dict[str, Any]], Optional[str], int]:
    """(the object, why there is none, bytes read)."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None, "config.json is no regular file", 0
        with open(path, "rb") as stream:
            content = stream.read(CONFIG_LIMIT + 1)
    except OSError as error:
        return None, f"config.json cannot be read: {error.strerror}", 0
    if len(content) > CONFIG_LIMIT:
        return None, f"config.json is larger than {CONFIG_LIMIT} bytes", 0
    try:
        found = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return None, f"config.json is no JSON: {str(error)[:200]}", 0
    if not isinstance(found, dict):
        return None, "config.json holds no object", 0
    return found, None, len(content)


def weigh(directory: str, names: Sequence[str]) -> Tuple[int, int]:
    """(files, bytes) of the weights that vLLM would load: safetensors where there are any, else *.bin."""
    chosen = [name for name in names if name.endswith(".safetensors")]
    # Mistral's consolidated files hold the same weights a second time.
    chosen = [name for name in chosen if not name.startswith("consolidated")] or chosen
    if not chosen:
        chosen = [name for name in names if name.endswith(".bin") and name not in _NO_WEIGHTS]
    sizes = []
    for name in chosen:
        try:
            sizes.append(os.stat(os.path.join(directory, name)).st_size)
        except OSError:  # noqa: PERF203 - a broken link is left out
            continue
    return len(sizes), sum(sizes)
