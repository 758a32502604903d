"""The System of a real Linux host."""

from __future__ import annotations

import os
import platform
import pwd
import signal
import socket
import stat
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import devices, logind, ports, proc, web
from .detach import start_supervisor
from .system import DeviceUse, HttpAnswer, Process, StartRequest
from .vllm_installations import find_installations

_SHM = "/dev/shm"  # noqa: S108 - the kernel's directory, not a temporary file


class LinuxSystem:
    """Reads /proc and the kernel; nothing here needs root."""

    def __init__(self) -> None:
        self.uid = os.geteuid()
        try:
            entry = pwd.getpwuid(self.uid)
            self.user, self.home = entry.pw_name, entry.pw_dir
        except KeyError:  # a container whose uid has no name
            self.user, self.home = str(self.uid), os.environ.get("HOME", "/")

    def boot_id(self) -> str:
        return (proc.read_text("/proc/sys/kernel/random/boot_id") or "unknown").strip()

    def machine_id(self) -> str:
        for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
            found = (proc.read_text(path, 256) or "").strip()
            if found.isalnum():
                return found
        return "unknown"

    def hostname(self) -> str:
        return socket.gethostname()

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def processes(self) -> List[Process]:
        found = (proc.read_process(pid) for pid in proc.list_pids())
        return [process for process in found if process is not None]

    def process(self, pid: int) -> Optional[Process]:
        return proc.read_process(pid)

    def signal(self, pid: int, start_time: int, number: int) -> bool:
        """By pidfd where kernel and Python have it (5.3, 3.9).

        Opened first, then the start time is compared.
        """
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except (AttributeError, OSError):
            return _signal_by_pid(pid, start_time, number)
        try:
            found = proc.read_process(pid)
            if found is None or found.start_time != start_time or found.gone:
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def shm_segments(self, pid: int) -> List[str]:
        return proc.mapped_shm(pid)

    def remove_shm(self, name: str) -> bool:
        if "/" in name or name in ("", ".", ".."):
            return False
        path = os.path.join(_SHM, name)
        try:
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != self.uid:
                return False
            if any(name in proc.mapped_shm(pid) for pid in proc.list_pids()):
                return False
            os.unlink(path)
        except OSError:
            return False
        return True

    def start_detached(self, request: StartRequest) -> None:
        start_supervisor(request)

    def bind_error(self, address: str, port: int) -> Optional[str]:
        return ports.bind_error(address, port)

    def http(
        self,
        method: str,
        url: str,
        *,
        body: Optional[bytes] = None,
        headers: Optional[Dict[str, str]] = None,
        timeout: float = 10.0,
    ) -> HttpAnswer:
        return web.ask(method, url, body=body, headers=headers or {}, timeout=timeout)

    def device_use(self) -> List[DeviceUse]:
        return devices.read_use()

    def gpu_facts(self) -> Dict[str, Any]:
        return devices.read_facts()

    def vllm_installations(self, roots: Sequence[str]) -> List[Dict[str, Any]]:
        return find_installations(roots, home=self.home, path=os.environ.get("PATH", os.defpath))

    def filesystem(self, path: str) -> Tuple[str, int, int]:
        found = os.statvfs(path)
        return proc.mount_type(path), found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def memory(self) -> Tuple[int, int]:
        sizes: Dict[str, int] = {}
        for line in (proc.read_text("/proc/meminfo") or "").splitlines():
            name, _separator, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                sizes[name] = int(words[0]) * 1024
        return sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)

    def load_average(self) -> Tuple[float, float, float]:
        return os.getloadavg()

    def cpu(self) -> Dict[str, Any]:
        """The cores this user may run on, and the model's name."""
        model = None
        for line in (proc.read_text("/proc/cpuinfo") or "").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        return {"count": len(os.sched_getaffinity(0)), "model": model}

    def os_release(self) -> Dict[str, str]:
        names: Dict[str, str] = {}
        for line in (proc.read_text("/etc/os-release") or "").splitlines():
            name, separator, value = line.partition("=")
            if separator:
                names[name] = value.strip().strip("\"'")
        return {"kernel": platform.release(), "os": names.get("PRETTY_NAME", "unknown")}

    def session_policy(self) -> Dict[str, Optional[bool]]:
        return logind.read_policy(user=self.user, uid=self.uid)


def _signal_by_pid(pid: int, start_time: int, number: int) -> bool:
    """Older kernels and Python 3.8: compare, then kill; the gap is some microseconds."""
    found = proc.read_process(pid)
    if found is None or found.start_time != start_time or found.gone:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
