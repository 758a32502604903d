"""The rules of CONTRIBUTING.md that a machine can check. Each names its reason; a planted violation must be found."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("fleetadmin", "accounts", "audit", "hosts", "deployments", "simulator", "rig")
LONGEST_FILE = 500
LONGEST_FUNCTION = 60
MOST_METHODS = 30  # the protocol of a machine (hosts/agent/system.py) has 24
FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py", "signals.py"}


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (path for path in (ROOT / package).rglob("*.py") if "migrations" not in path.parts)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines_with(pattern: str, *, outside: set[str], below: tuple[str, ...] = PACKAGES) -> list[str]:
    """Places where the pattern stands, but for the files where it may."""
    found = []
    for path in sources():
        if name_of(path) in outside or not name_of(path).startswith(below):
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if re.search(pattern, line) and not line.lstrip().startswith("#"):
                found.append(f"{name_of(path)}:{number}")
    return found


class TestOneDoor:
    def test_states_of_launches_and_runs_move_in_transitions_alone(self):
        # A second writer would skip the event row and the announcement.
        pattern = r"(Launch|Run)\.objects\..*update\(.*\bstate=|\b(launch|run)\.state = "
        assert lines_with(pattern, outside={"deployments/transitions.py"}, below=("deployments",)) == []

    def test_tasks_are_sent_from_queue_alone(self):
        assert lines_with(r"\.apply_async\(|\.delay\(|send_task\(", outside={"hosts/queue.py"}) == []

    def test_channel_messages_are_sent_from_live_alone(self):
        assert lines_with(r"group_send\b", outside={"hosts/live.py"}) == []

    def test_audit_entries_are_written_in_record_alone(self):
        assert lines_with(r"\bEntry\.objects\.(bulk_)?create|= Entry\(", outside={"audit/record.py"}) == []

    def test_credentials_are_opened_in_connections_alone(self):
        assert lines_with(r"\bunseal\(", outside={"hosts/vault.py", "hosts/connections.py"}) == []


class TestClock:
    def test_pure_packages_read_no_clock(self):
        pattern = r"\.now\(|time\.time\(|monotonic\("
        assert lines_with(pattern, outside=set(), below=("deployments/planning", "hosts/facts")) == []


class TestShell:
    def test_nothing_is_run_through_a_shell(self):
        assert lines_with(r"shell\s*=\s*True|os\.system\(|os\.popen\(", outside=set()) == []


class TestSize:
    def test_no_file_is_a_drawer(self):
        # simulator/vllm/signals.py is about SIGTERM and SIGKILL, not about Django's signals.
        drawers = [name_of(path) for path in sources() if path.name in FORBIDDEN_NAMES]
        assert [name for name in drawers if not name.startswith("simulator/")] == []

    def test_files_stay_short(self):
        assert [name_of(path) for path in sources() if len(path.read_text().splitlines()) > LONGEST_FILE] == []

    def test_functions_and_classes_stay_short(self):
        found = []
        for path in sources():
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    if node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION:
                        found.append(f"{name_of(path)}:{node.name}")
                elif isinstance(node, ast.ClassDef):
                    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
                    if len(methods) > MOST_METHODS:
                        found.append(f"{name_of(path)}:{node.name}")
        assert found == []


class TestPurity:
    @pytest.mark.parametrize(
        "module",
        [
            "deployments.planning.build_start",
            "deployments.planning.phases",
            "deployments.planning.failure",
            "deployments.execution.engine",
            "hosts.facts.parse",
            "hosts.agent_session",
            "hosts.agent.server",
            "simulator.fleet",
        ],
    )
    def test_loads_no_framework_by_any_detour(self, module):
        # The static contract cannot see what a library imports at run time; a fresh interpreter can.
        code = (
            f"import sys, {module}; "
            "print(sorted({name.split('.')[0] for name in sys.modules} & {'django', 'celery', 'channels', 'paramiko'}))"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    def test_the_agent_imports_the_standard_library_and_pynvml_alone(self):
        allowed = set(sys.stdlib_module_names) | {"pynvml", "__future__", "agent"}
        found = []
        for path in (ROOT / "hosts/agent").glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                found += [f"{path.name}: {name}" for name in names if name.split(".")[0] not in allowed]
        assert found == []


class TestNothingOfThisMachine:
    def test_no_file_names_a_registry(self):
        hosts = "|".join(["py" + "pi", "python" + "hosted", "npm" + "js", "deb\\.deb" + "ian"])
        tracked = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        found = []
        for name in tracked:
            path = ROOT / name
            if path.suffix in {".png", ".ico", ".gz"} or not path.is_file():
                continue
            if re.search(rf"https?://[^\s\"']*({hosts})", path.read_text(errors="replace")):
                found.append(name)
        assert found == []


class TestEveryCommandAndTask:
    def test_has_a_test_that_names_it(self):
        texts = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
        commands = [
            path.stem
            for package in PACKAGES
            for path in (ROOT / package).glob("management/commands/*.py")
            if path.stem != "__init__"
        ]
        assert [name for name in commands if f'"{name}"' not in texts] == []

    def test_contracts_between_packages_hold(self):
        done = subprocess.run(
            [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:]
