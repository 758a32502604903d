#!/bin/bash
# usage: install.sh DIR   (needs python3.11 on PATH; does nothing where DIR already serves)
# --no-deps: the list is complete; resolving would add torchvision, which does not import beside this torch.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ -x "$1/bin/vllm" ]; then echo "vLLM is already in $1"; exit 0; fi
python3.11 -m venv "$1"
"$1/bin/pip" install --quiet --no-deps setuptools==78.1.1
"$1/bin/pip" install --quiet --no-deps -r "$here/requirements.txt"
"$1/bin/python" "$here/make_vllm_stub.py"
