"""Getting the agent onto a host: a Python that can run it, and its archive with the right content.

Two plain /bin/sh one-liners, kept as constants, are all that runs before the agent does; a host that already
has the agent costs one round trip.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hosts.ssh.command import Command, Result
from hosts.ssh.errors import WriteRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hosts.agent_archive import AgentArchive
    from hosts.ssh.runner import Runner

OLDEST_PYTHON = (3, 8)
USUAL_PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(13, 7, -1)))

# Runs under whatever Python the host has. Written for 3.4 as well, so that an old one is named rather than a
# riddle.
PROBE = """\
import sys
v = list(sys.version_info[:3])
if v < [3, 8]:
    print("FLEETADMIN-OLD %d.%d.%d" % tuple(v)); sys.exit(3)
import hashlib, json, os
root = sys.argv[1] or os.path.join(os.path.realpath(os.path.expanduser("~")), ".fleetadmin")
path = os.path.join(root, "agents", sys.argv[2])
link, there, step = None, "/", "/"
for part in [p for p in path.split("/") if p]:
    step = os.path.join(step, part)
    if os.path.islink(step):
        link = step; break
    if not os.path.exists(step):
        break
    there = step
try:
    with open(path, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
except OSError:
    digest = None
kind, best = None, ""
try:
    with open("/proc/self/mounts") as f:
        for line in f:
            words = line.split(" ")
            point = words[1].replace("\\\\040", " ")
            if (there + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
                best, kind = point, words[2]
except OSError:
    pass
owner = os.lstat(root).st_uid if os.path.isdir(root) else None
print("FLEETADMIN " + json.dumps({"python": sys.executable, "version": v, "state_root": root, "path": path,
    "digest": digest, "link": link, "filesystem": kind, "owner": owner, "uid": os.geteuid()}))
"""

# Arguments: the probe, the state root or "", the archive's name, then the candidates. The first that can is
# taken.
FIND_PYTHON = (
    'c=$1; r=$2; n=$3; shift 3; for p in "$@"; do command -v "$p" >/dev/null 2>&1 || continue; '
    'if o=$("$p" -I -c "$c" "$r" "$n" 2>/dev/null </dev/null); then printf "%s\\n" "$o"; exit 0; fi; '
    'v=$("$p" -V 2>&1 </dev/null) && printf "FLEETADMIN-TRIED %s %s\\n" "$p" "$v"; done; exit 3'
)
MAKE_FOLDER = 'umask 077; LC_ALL=C; export LC_ALL; mkdir -p "$1"'

# Locks and renames are only as good as the file system. The agent checks again, by statfs.
NOT_LOCAL = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "gpfs", "glusterfs", "afs"})


@dataclass(frozen=True)
class Refusal:
    """A no with its reason: stable code, one sentence, the next step, the numbers."""

    code: str
    message: str
    next_step: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


class AgentRefused(Exception):
    """Carries the refusal of the agent, of the start of it, or of the conversation with it."""

    def __init__(self, *, code: str, message: str, next_step: str, numbers: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.refusal = Refusal(code, message, next_step, numbers or {})
        self.code = code
        self.message = message
        self.next_step = next_step
        self.numbers = self.refusal.numbers

    @classmethod
    def of(cls, refusal: Refusal) -> AgentRefused:
        return cls(
            code=refusal.code,
            message=refusal.message,
            next_step=refusal.next_step,
            numbers=refusal.numbers,
        )


@dataclass(frozen=True)
class InstalledAgent:
    """What to start: the interpreter and the archive, both absolute paths on the host."""

    python: str
    version: tuple[int, int, int]
    path: str


def install_agent(
    runner: Runner,
    *,
    archive: AgentArchive,
    interpreters: Sequence[str] = (),
    state_root: str | None = None,
    on_installed: Callable[[str, str], None] | None = None,
) -> InstalledAgent:
    """Find a Python of at least 3.8 and see to it that the archive lies on the host; no copy when it does.

    `interpreters` come first (the administrator's), then the usual names; callers append those of vLLM
    installations by `order_interpreters`. `on_installed` is told path and digest after a copy.
    Errors: AgentRefused (NO_PYTHON, PYTHON_TOO_OLD, AGENT_DIFFERS, STATE_ROOT_LINKED, STATE_ROOT_NOT_OURS,
    STATE_ROOT_NOT_LOCAL), WriteRefused, and those of the runner.
    """
    wanted = hashlib.sha256(archive.content).hexdigest()
    found = _probe(runner, archive=archive, interpreters=interpreters, state_root=state_root)
    if found["digest"] != wanted:
        folder = found["path"].rpartition("/")[0]
        made = runner.run(Command(argv=("/bin/sh", "-c", MAKE_FOLDER, "sh", folder)))
        if not made.ok:
            raise WriteRefused("WRITE_REFUSED", path=folder, address="the host", detail=made.error_text.strip()[:500])
        runner.put(found["path"], archive.content, 0o600)
        python = (found["python"],)
        found = _probe(runner, archive=archive, interpreters=python, state_root=state_root)
        if found["digest"] != wanted:
            raise AgentRefused.of(_differs(found, wanted))
        if on_installed is not None:
            on_installed(found["path"], archive.digest)
    return InstalledAgent(python=found["python"], version=tuple(found["version"]), path=found["path"])


def order_interpreters(*, chosen: Sequence[str] = (), of_vllm: Sequence[str] = ()) -> tuple[str, ...]:
    """Give the candidates in order: the administrator's, python3 and its named versions, those of vLLM.

    No doubles.
    """
    return tuple(dict.fromkeys((*chosen, *USUAL_PYTHONS, *of_vllm)))


def _probe(
    runner: Runner, *, archive: AgentArchive, interpreters: Sequence[str], state_root: str | None
) -> dict[str, Any]:
    words = (PROBE, state_root or "", archive.name, *interpreters)
    result = runner.run(Command(argv=("/bin/sh", "-c", FIND_PYTHON, "sh", *words), timeout=60.0))
    found = read_probe(result)
    refusal = judge_probe(found, tried=_read_tried(result), interpreters=interpreters)
    if refusal is not None:
        raise AgentRefused.of(refusal)
    assert found is not None  # noqa: S101 - judge_probe refuses without
    return found


def read_probe(result: Result) -> dict[str, Any] | None:
    """Give the probe's answer, None without one.

    Lines that the login shell printed before are passed over.
    """
    for line in reversed(result.text.splitlines()):
        if not line.startswith("FLEETADMIN {"):
            continue
        try:
            found = json.loads(line.partition(" ")[2])
        except ValueError:
            return None
        texts = all(isinstance(found.get(name), str) for name in ("python", "path", "state_root"))
        version = found.get("version")
        return found if texts and isinstance(version, list) and len(version) == 3 else None
    return None


def judge_probe(
    found: Mapping[str, Any] | None, *, tried: Sequence[str], interpreters: Sequence[str]
) -> Refusal | None:
    """Tell why the agent cannot be put there, None when it can."""
    if found is None:
        return _no_python(tried, interpreters)
    root = found["state_root"]
    if found.get("link"):
        return Refusal(
            "STATE_ROOT_LINKED",
            f"The state root {root} leads over the link {found['link']}.",
            "Name the folder itself as the state root if that is the right place.",
            {"path": root, "link": found["link"]},
        )
    if found.get("owner") not in (None, found.get("uid")):
        return Refusal(
            "STATE_ROOT_NOT_OURS",
            f"The state root {root} belongs to uid {found['owner']}, not to {found['uid']}.",
            "Name a folder of the SSH user as the state root, or give this one to it.",
            {"path": root, "owner": found["owner"], "uid": found["uid"]},
        )
    kind = str(found.get("filesystem") or "")
    if kind in NOT_LOCAL or kind.startswith("fuse"):
        return Refusal(
            "STATE_ROOT_NOT_LOCAL",
            f"The state root {root} lies on {kind}, where locks cannot be relied on.",
            "Name a folder on a local disk as the state root of this host.",
            {"path": root, "filesystem": kind},
        )
    return None


def _no_python(tried: Sequence[str], interpreters: Sequence[str]) -> Refusal:
    next_step = "Install Python 3.8 or newer, or name an interpreter for this host (that of vLLM will do)."
    if tried:
        return Refusal(
            "PYTHON_TOO_OLD",
            f"No Python on the host is 3.8 or newer and works: {'; '.join(tried)}.",
            next_step,
            {"tried": list(tried)},
        )
    return Refusal(
        "NO_PYTHON",
        "No Python was found on the host.",
        next_step,
        {"looked_for": list(interpreters)},
    )


def _read_tried(result: Result) -> list[str]:
    prefix = "FLEETADMIN-TRIED "
    lines = [line[len(prefix) :][:200] for line in result.text.splitlines() if line.startswith(prefix)]
    return lines[:20]


def _differs(found: Mapping[str, Any], wanted: str) -> Refusal:
    return Refusal(
        "AGENT_DIFFERS",
        f"The agent at {found['path']} is not the one that was copied there a moment ago.",
        "Find out who else writes to that folder, and look at the disk of the host.",
        {"path": found["path"], "wanted": wanted, "found": found["digest"]},
    )
