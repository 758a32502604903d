"""What holds for every page: the policy for scripts and styles, the frame, and templates that keep to it."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.staticfiles import finders
from django.urls import reverse

from tests import factories, people

TEMPLATES = sorted((Path(settings.BASE_DIR) / "templates").rglob("*.html"))
FORBIDDEN = {
    "an inline script": re.compile(r"<script(?![^>]*\bsrc=)[^>]*>", re.IGNORECASE),
    "an inline style": re.compile(r"\sstyle\s*=|<style\b", re.IGNORECASE),
    "an inline handler": re.compile(r"\son(?:click|load|change|submit|input|error)\s*=", re.IGNORECASE),
    "code for htmx to evaluate": re.compile(r"hx-on|hx-vals\s*=\s*[\"']js:|\bjavascript:", re.IGNORECASE),
    "an address of another site": re.compile(r"(?:src|href)\s*=\s*[\"'](?:https?:)?//", re.IGNORECASE),
    "trust in a value": re.compile(r"\|\s*safe\b|autoescape off"),
    "the word successfully": re.compile(r"successfully", re.IGNORECASE),
}


class TestTemplates:
    @pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: str(path.relative_to(settings.BASE_DIR)))
    def test_hold_nothing_that_the_policy_forbids(self, template):
        text = template.read_text()
        assert [name for name, pattern in FORBIDDEN.items() if pattern.search(text)] == []

    @pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: str(path.relative_to(settings.BASE_DIR)))
    def test_say_nothing_that_cannot_be_translated(self, template):
        bare = re.sub(r"<(script|style|pre|code)\b.*?</\1>|<!--.*?-->", " ", template.read_text(), flags=re.DOTALL)
        bare = re.sub(r"{% blocktranslate.*?{% endblocktranslate %}", " ", bare, flags=re.DOTALL)
        bare = re.sub(r"{%.*?%}|{{.*?}}|{#.*?#}", " ", bare, flags=re.DOTALL)
        bare = re.sub(r"<[^>]*>|&\w+;", " ", bare)
        assert set(re.findall(r"[A-Za-z]{3,}", bare)) <= PROPER_NAMES

    def test_name_only_static_files_that_are_there(self):
        named = {
            name
            for template in TEMPLATES
            for name in re.findall(r"{% static ['\"]([^'\"]+)['\"] %}", template.read_text())
            if not name.startswith("vendor/")
        }
        assert [name for name in sorted(named) if finders.find(name) is None] == []

    def test_are_found(self):
        assert len(TEMPLATES) > 30


# Names that are the same in every language: of this program, of settings, of columns of other programs.
PROPER_NAMES = {
    "fleet", "admin", "fleetadmin", "torch", "Python", "MIG", "GiB", "YAML", "UTC", "pid", "dev", "shm",
    "KillUserProcesses", "RemoveIPC", "sid",
}  # fmt: skip


class TestScripts:
    def test_import_nothing_by_a_name_without_its_hash(self):
        scripts = sorted((Path(settings.BASE_DIR) / "static" / "js").glob("*.js"))
        assert len(scripts) >= 7
        assert [path.name for path in scripts if re.search(r"^import\b", path.read_text(), re.MULTILINE)] == []


@pytest.mark.django_db
class TestPolicy:
    def test_allows_scripts_and_styles_of_this_site_alone(self, page, host):
        policy = page(reverse("fleet"))["Content-Security-Policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";") if rule.strip())
        assert rules["script-src"] == "'self'"
        assert rules["style-src"] == "'self'"
        assert rules["frame-ancestors"] == "'none'"

    def test_is_sent_with_a_refusal_too(self, page, environment):
        answer = page(reverse("hosts:detail", args=[999]))
        assert answer.status_code == 404
        assert "script-src" in answer["Content-Security-Policy"]


@pytest.mark.django_db
class TestFrame:
    def test_offers_only_the_sections_that_may_be_opened(self, page, host):
        assert reverse("audit:list") not in page(reverse("fleet"), "viewer").content.decode()
        assert reverse("audit:list") in page(reverse("fleet"), "administrator").content.decode()

    def test_tells_htmx_to_evaluate_nothing(self, page, host):
        assert '"allowEval":false' in page(reverse("fleet")).content.decode()

    def test_explains_a_page_that_is_not_there(self, page, environment):
        text = page(reverse("deployments:detail", args=[999]), "viewer").content.decode()
        assert "NOT_FOUND" in text
        assert "Next step:" in text

    def test_explains_a_right_that_is_missing(self, page, environment):
        text = page(reverse("hosts:new"), "viewer").content.decode()
        assert "NOT_PERMITTED" in text
        assert "hosts.add_host" in text

    def test_answers_a_refresh_with_the_part_alone(self, page, host):
        whole = page(reverse("hosts:detail", args=[host.pk]))
        part = page(reverse("hosts:detail", args=[host.pk]), headers={"HX-Request": "true"})
        assert "<html" in whole.content.decode()
        assert "<html" not in part.content.decode()
        assert 'id="host"' in part.content.decode()
        assert "HX-Request" in part["Vary"]


@pytest.mark.django_db
class TestHostileText:
    def test_is_shown_as_text(self, page, environment):
        host = factories.make_host(environment, facts=False)
        nasty = '<img src=x onerror="alert(1)">'
        factories.HostFacts.objects.create(
            host=host, taken_at=factories.NOW, body=factories.facts_body(host, os=nasty, kernel=nasty)
        )
        text = page(reverse("hosts:detail", args=[host.pk])).content.decode()
        assert nasty not in text
        assert "&lt;img" in text


@pytest.mark.django_db
class TestSignIn:
    def test_refuses_a_wrong_password_with_a_sentence(self, client, environment):
        answer = client.post(reverse("accounts:sign-in"), {"username": "ada", "password": "wrong"})
        assert answer.status_code == 422
        assert 'role="alert"' in answer.content.decode()

    def test_leads_to_the_page_that_was_asked_for(self, client, environment):
        people.administrator(environment)
        wanted = reverse("hosts:list")
        values = {"username": "ada", "password": people.PASSWORD, "next": wanted}
        assert client.post(reverse("accounts:sign-in"), values)["Location"] == wanted

    def test_never_leads_to_another_site(self, client, environment):
        people.administrator(environment)
        values = {"username": "ada", "password": people.PASSWORD, "next": "https://example.com/"}
        assert client.post(reverse("accounts:sign-in"), values)["Location"] == reverse("fleet")
