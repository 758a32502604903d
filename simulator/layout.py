"""The directory of a simulated host: home, tools, model directories, vLLM installations, keys.

What the agent reads with plain file access really exists: reported paths are real paths below DIR/HOST/root.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.spec import HostSpec, InstallationSpec, ModelSpec

# What a shell one-liner of a controller may need: links, so that nothing else of this machine is on the PATH.
TOOLS = (
    "awk",
    "basename",
    "cat",
    "chmod",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "dirname",
    "echo",
    "env",
    "expr",
    "false",
    "find",
    "grep",
    "head",
    "hostname",
    "id",
    "install",
    "ln",
    "ls",
    "mkdir",
    "mktemp",
    "mv",
    "od",
    "printf",
    "pwd",
    "readlink",
    "rm",
    "rmdir",
    "sed",
    "sh",
    "sha256sum",
    "sleep",
    "sort",
    "stat",
    "sync",
    "tail",
    "tee",
    "test",
    "touch",
    "tr",
    "true",
    "uname",
    "wc",
    "whoami",
    "xargs",
)


@dataclass(frozen=True)
class Layout:
    """Paths of one host. `base` holds no link."""

    base: Path

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def bin(self) -> Path:
        return self.base / "bin"

    @property
    def tmp(self) -> Path:
        return self.base / "tmp"

    @property
    def models(self) -> Path:
        return self.base / "root" / "models"

    @property
    def opt(self) -> Path:
        return self.base / "root" / "opt"

    @property
    def host_key(self) -> Path:
        return self.base / "ssh_host_ed25519_key"

    def executable(self, installation: InstallationSpec) -> Path:
        return self.opt / installation.name / "bin" / "vllm"


def lay_out(spec: HostSpec, base: Path) -> Layout:
    """Make what is missing; what exists stays, so that a restarted simulator finds its hosts again."""
    layout = Layout(base=base.resolve())
    for directory in (layout.home, layout.bin, layout.tmp, layout.models, layout.opt):
        directory.mkdir(parents=True, exist_ok=True)
    layout.home.chmod(0o700)
    for tool in TOOLS:
        found = shutil.which(tool, path="/usr/bin:/bin")
        if found is not None:
            _link(layout.bin / tool, Path(found))
    if spec.python and spec.old_python is None:
        _link(layout.bin / "python3", Path(os.path.realpath(sys.executable)))
    if spec.old_python is not None:
        _pretend_python(layout.bin / "python3", spec.old_python)
    for model in spec.models:
        write_model(layout.models, model)
    for installation in spec.installations:
        _install(layout, installation)
    return layout


def _link(path: Path, target: Path) -> None:
    if not path.is_symlink():
        path.symlink_to(target)


def _pretend_python(path: Path, version: str) -> None:
    """Put a python3 there that tells its version and can do nothing else."""
    path.unlink(missing_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = -V ] && echo "Python {version}" && exit 0\nexit 3\n', "utf-8")
    path.chmod(0o755)


def write_model(root: Path, model: ModelSpec) -> Path:
    """ROOT/NAME with config.json and sparse weight files of the declared size."""
    directory = root / model.name
    directory.mkdir(parents=True, exist_ok=True)
    if model.config is not None:
        (directory / "config.json").write_text(json.dumps(model.config, indent=2), "utf-8")
        (directory / "generation_config.json").write_text('{"temperature": 0.7, "top_p": 0.8}', "utf-8")
    size, rest = divmod(model.weight_bytes, max(1, model.shards))
    for index in range(model.shards):
        name = "model.safetensors" if model.shards == 1 else f"model-{index + 1:05d}-of-{model.shards:05d}.safetensors"
        path = directory / name
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(size + (rest if index == 0 else 0))
    return directory


def _install(layout: Layout, installation: InstallationSpec) -> None:
    executable = layout.executable(installation)
    executable.parent.mkdir(parents=True, exist_ok=True)
    executable.write_text(f"#!/bin/sh\necho {installation.version}\n", "utf-8")
    executable.chmod(0o755)
    _link(executable.parent / "python", Path(os.path.realpath(sys.executable)))
