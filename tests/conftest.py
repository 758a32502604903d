"""Fixtures for everybody."""

import uuid

import pytest


def wants_commits(request) -> bool:
    marker = request.node.get_closest_marker("django_db")
    return "transactional_db" in request.fixturenames or bool(marker and marker.kwargs.get("transaction"))


@pytest.fixture(autouse=True)
def _rows_of_migrations(request):
    """Tests that commit are cleaned by a flush, which the trail's triggers rightly refuse, and which takes the rows
    that migrations made: the triggers step aside for the flush alone, and the rows come back before each test."""
    if not wants_commits(request):
        yield
        return
    request.getfixturevalue("transactional_db")
    from django.db import connection

    from audit import triggers
    from audit.models import Head
    from hosts.models import Installation

    Head.objects.update_or_create(pk=1, defaults={"sequence": 0, "hash": "0" * 64})
    Installation.objects.get_or_create(pk=1, defaults={"controller_id": uuid.uuid4()})
    with connection.schema_editor() as editor:
        triggers.install(editor, "audit_entry")
    yield
    with connection.schema_editor() as editor:
        triggers.remove(editor, "audit_entry")


def pytest_collection_modifyitems(items):
    """Fast tests first, the ones on real parts last."""
    items.sort(key=lambda item: item.get_closest_marker("real") is not None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """The agent sees every marked process of the machine, so its tests share one worker.

    xdist_group would say the same: pytest-xdist 3.8.0 loses the group with pytest 9.2 (it sets Node._nodeid).
    """
    from xdist.scheduler import LoadScopeScheduling

    class OneMachine(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return "tests/agent" if nodeid.startswith("tests/agent/") else nodeid

    return OneMachine(config, log)


def pytest_terminal_summary(terminalreporter):
    import os

    if os.environ.get("FLEETADMIN_REFUSE_SKIPS") and terminalreporter.stats.get("skipped"):
        terminalreporter.write_line("Skipped tests are refused here: this machine has to have every program.")


def pytest_sessionfinish(session, exitstatus):
    import os

    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("FLEETADMIN_REFUSE_SKIPS") and reporter and reporter.stats.get("skipped") and exitstatus == 0:
        session.exitstatus = 1
