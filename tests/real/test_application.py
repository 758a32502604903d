"""`manage.py up` as its user runs it: the demo succeeds, and nothing stays behind however it ends."""

import signal

import pytest
from playwright.sync_api import expect

from tests.real.application import application, processes_of, wait_for

pytestmark = pytest.mark.real


class TestDemo:
    def test_ends_with_every_instance_ready_and_shows_it(self, tmp_path, page):
        with application(tmp_path / "var", arguments=("--demo",), ready="instances ready", seconds=240) as app:
            assert "24 of 24 instances ready." in "".join(app.output)
            page.goto(f"{app.url}/accounts/sign-in/")
            page.get_by_label("Username").fill("admin")
            page.get_by_label("Password").fill(app.password)
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_text("qwen3-demo").first).to_be_visible()
            expect(page.get_by_text("gpu-b").first).to_be_visible()
            assert page.complaints == []
        assert processes_of(tmp_path / "var") == []


class TestEnd:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_leaves_no_process_behind(self, tmp_path, number):
        with application(tmp_path / "var") as app:
            assert len(processes_of(tmp_path / "var")) >= 5
            app.process.send_signal(number)
            app.process.wait(timeout=30)
            wait_for(lambda: processes_of(tmp_path / "var") == [], seconds=15, what="the end of its processes")
