"""Failures as data: what every page and command shows."""

from collections.abc import Mapping

from django.utils.translation import gettext as _


def problem(*, code: str, message: str, next_step: str, numbers: Mapping | None = None) -> dict:
    return {"code": code, "message": message, "next_step": next_step, "numbers": dict(numbers or {})}


def problem_of(error) -> dict:
    """What an SshError, an AgentRefused or a FactsProblem says, as data."""
    return problem(
        code=error.code,
        message=error.message,
        next_step=error.next_step,
        numbers={key: value for key, value in getattr(error, "numbers", {}).items() if key != "traceback"},
    )


def machine_enrolled_already(first) -> dict:
    return problem(
        code="MACHINE_ENROLLED_ALREADY",
        message=_("This machine is already enrolled as %(name)s (%(login)s).")
        % {"name": first.name, "login": first.login},
        next_step=_("Use that host, or delete it before you enrol the machine again."),
    )


def machine_id_missing() -> dict:
    return problem(
        code="MACHINE_ID_MISSING",
        message=_("The host has no machine id: /etc/machine-id is empty."),
        next_step=_("Have root run systemd-machine-id-setup there, then try again."),
    )


def identity_changed(*, wanted: str, found: str) -> dict:
    return problem(
        code="MACHINE_CHANGED",
        message=_("Another machine answers at this address: machine id %(found)s, enrolled was %(wanted)s.")
        % {"found": found[:12], "wanted": wanted[:12]},
        next_step=_("If the machine was replaced, delete this host and enrol it anew; otherwise check the address."),
        numbers={"wanted": wanted, "found": found},
    )


def unexpected(error: Exception) -> dict:
    return problem(
        code="INTERNAL_ERROR",
        message=_("fleetadmin made a mistake (%(kind)s).") % {"kind": type(error).__name__},
        next_step=_("The worker's log has the traceback. Try again, and report it if it comes back."),
    )


def name_taken(first) -> dict:
    return problem(
        code="NAME_TAKEN",
        message=_("A host named %(name)s exists in this environment.") % {"name": first.name},
        next_step=_("Choose another name."),
    )


def key_not_shown() -> dict:
    return problem(
        code="KEY_NOT_SHOWN",
        message=_("The fingerprint you confirmed is not the one that is waiting for confirmation."),
        next_step=_("Open the host again and compare the fingerprint it shows now."),
    )


def credential_in_use(credential) -> dict:
    hosts = ", ".join(credential.hosts.order_by("name").values_list("name", flat=True)[:8])
    return problem(
        code="CREDENTIAL_IN_USE",
        message=_("%(name)s is used by %(hosts)s.") % {"name": credential.name, "hosts": hosts},
        next_step=_("Delete those hosts or enrol them anew with another credential; then delete this one."),
    )


def host_in_use(host) -> dict:
    return problem(
        code="HOST_IN_USE",
        message=_("Launches were made on %(name)s; their history keeps it.") % {"name": host.name},
        next_step=_("Stop what runs there. A host with a history stays in the list."),
    )
