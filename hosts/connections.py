"""Host → an agent session, at most one connection per host and process; the only place a credential is opened."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.conf import settings

from hosts.agent_archive import build_archive
from hosts.agent_session import AgentSession, open_session
from hosts.models import Credential, Host, Installation
from hosts.ssh.endpoint import Endpoint, HostKey, KeyAuth, Limits, PasswordAuth
from hosts.ssh.paramiko_runner import connect
from hosts.ssh.runner import Runner
from hosts.vault import VaultClosed, unseal

IDLE_SECONDS = 60


@dataclass
class Held:
    """A connection in use or kept warm."""

    runner: Runner
    session: AgentSession
    users: int = 0
    idle_since: float = 0.0


class Connections:
    """The connections of this process. Threads share the one of a host; the session multiplexes their requests."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._opening: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()

    @contextmanager
    def session(self, host: Host) -> Iterator[AgentSession]:
        """A live session; kept for a minute after its last use. Raises the errors of hosts.ssh.errors."""
        held = self._enter(host)
        try:
            yield held.session
        except Exception:
            self._drop_if_dead(host.pk, held)
            raise
        finally:
            with self._lock:
                held.users -= 1
                held.idle_since = time.monotonic()
            self.close_idle()

    def _enter(self, host: Host) -> Held:
        with self._lock:
            opening = self._opening.setdefault(host.pk, threading.Lock())
        with opening:
            with self._lock:
                held = self._held.get(host.pk)
            if held is None or not held.session.alive:
                if held is not None:
                    held.runner.close()
                held = open_connection(host)
                with self._lock:
                    self._held[host.pk] = held
            with self._lock:
                held.users += 1
            return held

    def _drop_if_dead(self, host_id: int, held: Held) -> None:
        if held.session.alive:
            return
        with self._lock:
            if self._held.get(host_id) is held:
                del self._held[host_id]
        held.runner.close()

    def close_idle(self, *, older_than: float = IDLE_SECONDS) -> None:
        """Close what nobody used for a while."""
        now = time.monotonic()
        with self._lock:
            idle = [key for key, held in self._held.items() if not held.users and now - held.idle_since > older_than]
            closing = [self._held.pop(key) for key in idle]
        for held in closing:
            held.session.close()
            held.runner.close()

    def close_all(self) -> None:
        """Close what nobody uses."""
        self.close_idle(older_than=-1.0)

    def forget(self, host_id: int) -> None:
        """Drop the connection of a host whose login changed."""
        with self._lock:
            held = self._held.pop(host_id, None)
        if held is not None:
            held.session.close()
            held.runner.close()


def open_connection(host: Host) -> Held:
    """Connect with the pinned host key, put the agent there, say hello."""
    runner = connect(endpoint_of(host), limits=limits())
    try:
        session = open_session(
            runner,
            archive=build_archive(),
            controller_id=controller_id(),
            interpreters=(host.interpreter,) if host.interpreter else (),
            vllm_interpreters=known_interpreters(host),
            state_root=host.state_root or None,
            log_root=host.log_root or None,
        )
    except Exception:
        runner.close()
        raise
    return Held(runner=runner, session=session)


def endpoint_of(host: Host) -> Endpoint:
    return Endpoint(
        address=host.address,
        port=host.port,
        user=host.user,
        host_key=HostKey(kind=host.host_key_kind, base64=host.host_key),
        auth=open_credential(host.credential),
    )


def open_credential(credential: Credential) -> KeyAuth | PasswordAuth:
    secret = unseal(credential_uuid=credential.uuid, kind=credential.kind, sealed=credential.sealed)
    if credential.kind == Credential.Kind.KEY:
        return KeyAuth(private_key_text=secret["private_key"], passphrase=secret.get("passphrase") or None)
    return PasswordAuth(password=secret["password"])


def open_secret(*, environment_id: int, name: str) -> str:
    """The value of a secret of this environment. Raises VaultClosed when there is none of that name."""
    credential = Credential.objects.filter(
        environment_id=environment_id, name=name, kind=Credential.Kind.SECRET
    ).first()
    if credential is None:
        raise VaultClosed(f"There is no secret named {name}.")
    return unseal(credential_uuid=credential.uuid, kind=credential.kind, sealed=credential.sealed)["value"]


def controller_id() -> str:
    """The id that marks this installation's processes on the hosts."""
    return str(Installation.objects.get(pk=1).controller_id)


connections = Connections()


def limits() -> Limits:
    return Limits(connect=float(settings.SSH_CONNECT_TIMEOUT_SECONDS))


def known_interpreters(host: Host) -> tuple[str, ...]:
    """Pythons of the host's vLLM installations, for a host without one of its own."""
    facts = host.facts.order_by("-taken_at").first()
    found = facts.body.get("vllm") or [] if facts else []
    below_roots = [f"{root.rstrip('/')}/bin/python3" for root in host.vllm_roots]
    return tuple(dict.fromkeys([*(item["python"] for item in found if item.get("python")), *below_roots]))
