"""Wishes that cannot be carried out: refused with every reason by services and command, and nothing is held."""

import pytest

from deployments.models import Run
from tests.bad_input.conftest import is_clear

pytestmark = pytest.mark.django_db(transaction=True)

GOOD = {"name": "qwen", "host": "gpu-a", "served_model_name": "qwen3", "max_model_len": 4096, "max_num_seqs": 32}
# (changes of the file, text behind it, code)
FILES = [
    ({"model": "/nowhere/m"}, "", "PATH_OUTSIDE_ROOTS"),
    ({"model": "ROOT/Qwen9-1B"}, "", "MODEL_MISSING"),
    ({"model": "ROOT/../../../etc"}, "", "PATH_OUTSIDE_ROOTS"),
    ({"host": "nobody"}, "", "WRONG_HOST"),
    ({}, "extra_args: {--frobnicate: 1}\n", "ARGUMENT_LOADS_CODE"),
    ({}, "extra_args: {--trust-remote-code: true}\n", "ARGUMENT_LOADS_CODE"),
    ({}, "extra_args: {--middleware: evil.module}\n", "ARGUMENT_LOADS_CODE"),
    ({}, "extra_args: {--port: 22}\n", "ARGUMENT_OURS"),
    ({}, "env: {LD_PRELOAD: /tmp/x.so}\n", "VARIABLE_LOADS_CODE"),
    ({}, "env: {FLEETADMIN_LAUNCH: x}\n", "VARIABLE_OURS"),
    ({"max_model_len": 10**7}, "", "CONTEXT_TOO_LONG"),
    ({"instances": 64}, "", None),
    ({"name": "Bad Name!"}, "", None),
    ({"instances": "many"}, "", None),
    ({}, "colour: blue\n", None),
    ({}, "name: twice\n", "YAML_KEY_TWICE"),
    ({}, "  bad: [\n", "YAML_SYNTAX"),
    ({}, "env: !!python/object/apply:os.system [id]\n", None),
    ({}, "env: {A: &a x, B: *a}\n", "YAML_ANCHOR"),
    ({}, "env: " + "[" * 5000 + "\n", None),
    ({}, 'env: {A: "\\0"}\n', None),
]


@pytest.fixture
def written(enrol, tmp_path):
    host = enrol("gpu-a")
    root = host.model_roots[0]

    def write(changes: dict, tail: str = "", *, raw: bytes | None = None) -> str:
        path = tmp_path / "wish.yaml"
        values = {"model": "ROOT/Qwen3-0.6B"} | GOOD | changes
        lines = [f"{key}: {str(value).replace('ROOT', root)}" for key, value in values.items()]
        path.write_bytes(raw if raw is not None else ("\n".join(lines) + "\n" + tail).encode())
        return str(path)

    return write


class TestFiles:
    @pytest.mark.parametrize("verb", ["plan", "apply"])
    def test_are_refused_with_exit_code_two(self, verb, written, fleet_command, nothing_half_started):
        """One fleet for all cases: each must leave nothing for the next."""
        for changes, tail, code in FILES:
            exit_code, body = fleet_command(verb, written(changes, tail))
            assert exit_code == 2, (changes, tail, body)
            for reason in body["refused"]:
                is_clear(reason, reason["code"])
            codes = [reason["code"] for reason in body["refused"]]
            assert code is None or code in codes, (changes, tail, codes)
            nothing_half_started("gpu-a")
        assert not Run.objects.exists()

    @pytest.mark.parametrize(
        "raw",
        [b"", b"\xff\xfe\x00", b"a: " + b"x" * (1 << 20), b"\x00", b"- 1\n", b"just text", b"name: \xc3\x28"],
        ids=["empty", "not UTF-8", "1 MiB", "NUL", "a list", "text", "half a character"],
    )
    def test_that_are_no_document_are_refused(self, raw, written, fleet_command, nothing_half_started):
        exit_code, body = fleet_command("apply", written({}, raw=raw))
        assert exit_code == 2
        is_clear(body["refused"][0], body["refused"][0]["code"])
        nothing_half_started("gpu-a")

    def test_that_are_a_directory_are_refused(self, environment, tmp_path, fleet_command):
        exit_code, body = fleet_command("apply", str(tmp_path))
        assert exit_code == 2
        is_clear(body["refused"][0], "FILE_UNREADABLE")


class TestHostsThatCannotServe:
    @pytest.mark.parametrize(
        ("name", "code"), [("no-vllm", "NO_VLLM"), ("logout", "LOGOUT_KILLS"), ("full", "DISK_FULL")]
    )
    def test_are_named(self, name, code, enrol, tmp_path, fleet_command, nothing_half_started):
        host = enrol(name)
        path = tmp_path / "wish.yaml"
        model = f"{host.model_roots[0]}/Qwen3-0.6B"
        path.write_text("\n".join(f"{k}: {v}" for k, v in (GOOD | {"host": name, "model": model}).items()))
        exit_code, body = fleet_command("apply", str(path), "--wait")
        problem = body["refused"][0] if "refused" in body else body["problem"]
        assert exit_code == (2 if "refused" in body else 1), body
        is_clear(problem, code)
        nothing_half_started(name)
