"""What the agent asks of the machine it runs on.

The verbs are written against this protocol; `linux.py` implements it for a real host, the simulator for a
simulated one, so the same agent code runs on both. Everything here is synchronous and may be called from
several threads.

Python 3.8: this file travels to the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Protocol, Sequence, Tuple


@dataclass(frozen=True)
class Process:
    """One process as /proc shows it at one moment. Sizes in bytes, start_time in clock ticks since boot."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    uid: int
    state: str  # one letter of /proc/PID/stat: R S D T Z …
    start_time: int
    title: str  # the command line with NULs as spaces; the comm in brackets where it is empty
    rss: int
    marker: Optional[str] = None  # FLEETADMIN_LAUNCH of its environment, None where absent or unreadable
    controller: Optional[str] = None  # FLEETADMIN_CONTROLLER likewise

    @property
    def gone(self) -> bool:
        """A zombie holds nothing any more: PID 1 of a container may reap it late."""
        return self.state in ("Z", "X")


@dataclass(frozen=True)
class DeviceUse:
    """One accelerator now. None where the machine did not say: no data is not 0."""

    uuid: str
    total: Optional[int]
    used: Optional[int]
    free: Optional[int]
    utilization: Optional[int] = None  # per cent
    power_w: Optional[float] = None
    temperature_c: Optional[int] = None
    processes: Tuple[Tuple[int, Optional[int]], ...] = ()  # (pid, used bytes)


@dataclass(frozen=True)
class StartRequest:
    """What the supervisor starts. `directory` holds request.json and status.json of the launch."""

    launch_id: str
    directory: str
    argv: Sequence[str]
    env: Dict[str, str]  # complete: nothing is inherited beyond it
    log_path: str
    cwd: Optional[str] = None


@dataclass(frozen=True)
class HttpAnswer:
    """An HTTP answer, or the reason why there is none (`status` None, `error` a sentence)."""

    status: Optional[int]
    body: bytes = b""
    headers: Dict[str, str] = field(default_factory=dict)
    error: Optional[str] = None
    seconds: float = 0.0


class System(Protocol):
    """The machine."""

    uid: int
    user: str
    home: str

    def boot_id(self) -> str: ...

    def machine_id(self) -> str: ...

    def hostname(self) -> str: ...

    def now(self) -> float:
        """Seconds since the epoch by the host's clock."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def processes(self) -> List[Process]:
        """Every process that can be seen."""

    def process(self, pid: int) -> Optional[Process]: ...

    def signal(self, pid: int, start_time: int, number: int) -> bool:
        """Signal exactly this process: False where pid no longer is the process started at start_time."""

    def shm_segments(self, pid: int) -> List[str]:
        """Names below /dev/shm that this process maps."""

    def remove_shm(self, name: str) -> bool:
        """Remove /dev/shm/NAME when it is of our uid and nobody maps it."""

    def start_detached(self, request: StartRequest) -> None:
        """Start the supervisor; returns when status.json tells `running` or `exited` (or after 10 s)."""

    def bind_error(self, address: str, port: int) -> Optional[str]:
        """None when a bind() without SO_REUSEADDR succeeds, else the reason."""

    def http(
        self,
        method: str,
        url: str,
        *,
        body: Optional[bytes] = None,
        headers: Optional[Dict[str, str]] = None,
        timeout: float = 10.0,
    ) -> HttpAnswer: ...

    def device_use(self) -> List[DeviceUse]:
        """Accelerators now; an empty list on a host without."""

    def gpu_facts(self) -> Dict[str, Any]:
        """The `gpus` part of the facts (see docs/agent-protocol.md)."""

    def vllm_installations(self, roots: Sequence[str]) -> List[Dict[str, Any]]: ...

    def filesystem(self, path: str) -> Tuple[str, int, int]:
        """(type, total bytes, bytes free to us) of the file system that holds path."""

    def memory(self) -> Tuple[int, int]:
        """(total, available) bytes of RAM."""

    def load_average(self) -> Tuple[float, float, float]: ...

    def cpu(self) -> Dict[str, Any]: ...

    def os_release(self) -> Dict[str, str]:
        """kernel, os."""

    def session_policy(self) -> Dict[str, Optional[bool]]:
        """kill_user_processes, linger, remove_ipc: what logind does to us at logout; None where unknown."""
