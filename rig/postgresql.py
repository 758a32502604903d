"""`python -m rig.postgresql COMMAND …`: run a command with TEST_DATABASE_URL of a PostgreSQL server made for it.

The server lives in a temporary directory, listens on a socket there alone, and ends with the command. As root it runs
under the account `postgres`, since PostgreSQL refuses to be root.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path


def find_binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path:
        return Path(on_path).parent
    if not found:
        raise SystemExit("PostgreSQL's server is not installed: make system-packages.")
    return found[-1].parent


@contextmanager
def server():
    """A running server; gives its URL."""
    binaries = find_binaries()
    root = Path(tempfile.mkdtemp(prefix="fleetadmin-pg-"))
    account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    if account:
        os.chown(root, account.pw_uid, account.pw_gid)

    def call(*argv: str) -> None:
        subprocess.run(
            argv,
            check=True,
            stdout=subprocess.DEVNULL,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            cwd=root,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        )

    data = root / "data"
    try:
        call(str(binaries / "initdb"), "-D", str(data), "-U", "fleetadmin", "--auth=trust", "-E", "UTF8")
        options = f"-c listen_addresses= -c unix_socket_directories={root} -c fsync=off -c max_connections=100"
        call(str(binaries / "pg_ctl"), "-D", str(data), "-w", "-l", str(root / "log"), "-o", options, "start")
        try:
            yield f"postgresql://fleetadmin@/postgres?host={root}"
        finally:
            call(str(binaries / "pg_ctl"), "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    with server() as url:
        done = subprocess.run(sys.argv[1:], env={**os.environ, "TEST_DATABASE_URL": url}, check=False)
    sys.exit(done.returncode)
