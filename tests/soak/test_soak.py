"""Fifty rounds of the soak: every boundary of a start, a restart and a stop, each worker killed with SIGKILL."""

import json
import subprocess
import sys

import pytest

from tests.soak.boundaries import KINDS, MOMENTS, STEPS
from tests.soak.simulated import ROOT

ROUNDS = 54  # three kinds of runs, of which a restart has the most boundaries: eighteen


@pytest.mark.real
@pytest.mark.timeout(900)
def test_a_worker_may_be_killed_at_every_step(tmp_path):
    out = tmp_path / "rounds.jsonl"
    command = [sys.executable, "-m", "tests.soak", "--rounds", str(ROUNDS), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850, check=False)
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert done.returncode == 0, [row for row in rows if row["wrong"]] or done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["met"] == ROUNDS
    assert {(row["kind"], row["SIGKILL"]) for row in rows} == {
        (kind, f"{moment} {step}") for kind in KINDS for step in STEPS[kind] for moment in MOMENTS
    }
