"""Changing what is known of hosts. Each function is one transaction with its audit entry, and announces on commit."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from accounts.actors import Actor
from accounts.models import Environment
from audit.record import record
from hosts import problems, queue
from hosts.live import announce
from hosts.models import Credential, Device, Host
from hosts.ssh.endpoint import KeyAuth
from hosts.ssh.paramiko_runner import public_fingerprint
from hosts.vault import seal

EDITABLE = ("model_roots", "vllm_roots", "state_root", "log_root", "interpreter")


class Refused(Exception):
    """The request cannot be met; `problem` says why and what to do."""

    def __init__(self, problem: dict) -> None:
        super().__init__(problem["message"])
        self.problem = problem


def add_key(
    *, environment: Environment, name: str, private_key: str, passphrase: str, by: Actor, now: datetime
) -> Credential:
    """Keep a private key, sealed. Raises SshError (KEY_UNREADABLE) when it is none."""
    fingerprint = public_fingerprint(KeyAuth(private_key_text=private_key, passphrase=passphrase or None))
    return add_credential(
        environment=environment,
        name=name,
        kind=Credential.Kind.KEY,
        secret={"private_key": private_key, "passphrase": passphrase},
        fingerprint=fingerprint,
        by=by,
        now=now,
    )


def add_password(*, environment: Environment, name: str, password: str, by: Actor, now: datetime) -> Credential:
    return add_credential(
        environment=environment,
        name=name,
        kind=Credential.Kind.PASSWORD,
        secret={"password": password},
        fingerprint="",
        by=by,
        now=now,
    )


@transaction.atomic
def add_credential(*, environment, name, kind, secret, fingerprint, by: Actor, now: datetime) -> Credential:
    credential = Credential(environment=environment, name=name, kind=kind, fingerprint=fingerprint, created_at=now)
    credential.sealed = seal(credential_uuid=credential.uuid, kind=kind, secret=secret)
    credential.save()
    record(actor=by, action="credential.add", subject=credential, after={"kind": str(kind), "fingerprint": fingerprint})
    return credential


def propose_host(
    *,
    environment: Environment,
    name: str,
    address: str,
    port: int,
    user: str,
    credential: Credential,
    by: Actor,
    now: datetime,
    **settings,
) -> Host:
    """Write the host down and have its key asked for. Raises Refused when the name or the address is taken."""
    first = Host.objects.filter(environment=environment, name=name).first()
    if first is not None:
        raise Refused(problems.name_taken(first))
    with transaction.atomic():
        host = Host.objects.create(
            environment=environment,
            name=name,
            address=address,
            port=port,
            user=user,
            credential=credential,
            asked_at=now,
            created_at=now,
            **{key: settings[key] for key in EDITABLE if key in settings},
        )
        record(actor=by, action="host.propose", subject=host, after={"login": host.login})
        queue.work_on_host(host.pk)
        announce("fleet", f"host.{host.pk}")
    return host


def confirm_key(*, host: Host, fingerprint: str, by: Actor, now: datetime) -> None:
    """Pin the key that was shown: the person confirms this fingerprint, not whatever the row says by then."""
    with transaction.atomic():
        moved = Host.objects.filter(pk=host.pk, state=Host.State.KEY_SHOWN, host_key_fingerprint=fingerprint).update(
            state=Host.State.CONFIRMED, asked_at=now, problem=None
        )
        if not moved:
            raise Refused(problems.key_not_shown())
        record(actor=by, action="host.pin_key", subject=host, after={"fingerprint": fingerprint})
        queue.work_on_host(host.pk)
        announce("fleet", f"host.{host.pk}")


def try_again(*, host: Host, by: Actor, now: datetime) -> None:
    """Once more after a refusal: from the sign-in where the key is pinned, else from the key."""
    pinned = bool(host.host_key) and (host.problem or {}).get("code") != "HOST_KEY_CHANGED"
    state = Host.State.CONFIRMED if pinned else Host.State.PROPOSED
    with transaction.atomic():
        moved = Host.objects.filter(pk=host.pk, state=Host.State.REFUSED).update(
            state=state, asked_at=now, problem=None
        )
        if moved:
            record(actor=by, action="host.try_again", subject=host)
            queue.work_on_host(host.pk)
            announce("fleet", f"host.{host.pk}")


def ask_for_facts(*, host: Host, by: Actor, now: datetime) -> None:
    with transaction.atomic():
        if Host.objects.filter(pk=host.pk, state=Host.State.ENROLLED).update(asked_at=now):
            record(actor=by, action="host.refresh", subject=host)
            queue.work_on_host(host.pk)
            announce(f"host.{host.pk}")


def change_host(*, host: Host, changes: dict, by: Actor) -> None:
    """Change paths an administrator sets; the address and the identity are not changed but enrolled anew."""
    before = {key: getattr(host, key) for key in changes}
    unknown = set(changes) - set(EDITABLE)
    if unknown:
        raise ValueError(f"not editable: {sorted(unknown)}")
    with transaction.atomic():
        Host.objects.filter(pk=host.pk).update(**changes)
        record(actor=by, action="host.change", subject=host, before=before, after=changes)
        announce("fleet", f"host.{host.pk}")


def delete_host(*, host: Host, by: Actor) -> None:
    """Forget a host that nothing refers to any more. Raises Refused where launches were made on it."""
    try:
        with transaction.atomic():
            record(
                actor=by,
                action="host.delete",
                subject=host,
                before={"login": host.login, "machine_id": host.machine_id},
            )
            host.delete()
            announce("fleet")
    except IntegrityError as error:
        raise Refused(problems.host_in_use(host)) from error


def delete_credential(*, credential: Credential, by: Actor) -> None:
    """Forget a key, a password or a secret. Raises Refused while a host is reached with it."""
    try:
        with transaction.atomic():
            record(
                actor=by,
                action="credential.delete",
                subject=credential,
                before={"kind": str(credential.kind), "fingerprint": credential.fingerprint},
            )
            credential.delete()
    except IntegrityError as error:
        raise Refused(problems.credential_in_use(credential)) from error


def keep_uses(*, host_id: int, uses: Iterable[Mapping[str, Any]], now: datetime) -> None:
    """What each device was just seen to hold: uuid, total, used and free bytes, and its processes."""
    for use in uses:
        Device.objects.filter(host_id=host_id, uuid=use["uuid"]).update(use=dict(use), use_at=now)
