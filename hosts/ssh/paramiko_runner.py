"""SSH by paramiko: the only file that imports it, and the only one that knows its exceptions."""

from __future__ import annotations

import base64
import contextlib
import io
import threading
import time
from typing import TYPE_CHECKING

import paramiko

from hosts.ssh.admission import ADMISSION
from hosts.ssh.command import Command, Result, clean_text
from hosts.ssh.endpoint import Endpoint, HostKey, KeyAuth, Limits
from hosts.ssh.errors import (
    AuthRefused,
    ChannelRefused,
    ConnectionLost,
    HostKeyChanged,
    HostKeyUnknown,
    SshError,
    TimedOut,
    TooManyConnections,
    Unreachable,
)
from hosts.ssh.files import put_file
from hosts.ssh.paramiko_channel import ParamikoChannel, give_up, run_on_channel
from hosts.ssh.wire import await_ssh, open_socket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hosts.ssh.runner import Channel

# The names a host-key algorithm goes by, per kind of key. RSA keys sign by SHA-2 only (paramiko 5 dropped
# SHA-1).
ALGORITHMS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}
PRIVATE_KEY_KINDS = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
SSH_KEEPALIVE_S = 5
SETTLE_S = 0.3
TOO_MANY_TRIES = "too many authentication failures"
USUAL = Limits()


class _Transport(paramiko.Transport):
    """Keeps what the server said when it hung up; the library only logs it."""

    farewell = ""

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        position = message.packet.tell()
        message.get_int()
        self.farewell = clean_text(message.get_string())
        message.packet.seek(position)
        super()._parse_disconnect(message)  # type: ignore[misc]  # not in the stubs


def connect(endpoint: Endpoint, *, limits: Limits = USUAL, no_delay: bool = True) -> ParamikoRunner:
    """Connect, compare the host key with the pinned one, and only then sign in.

    No agent and no key files of this machine are asked. Errors: all of hosts/ssh/errors.py up to AuthRefused.
    `no_delay` is for measuring (perf/ssh_exec.py).
    """
    pinned = endpoint.host_key
    if pinned is None:
        raise HostKeyUnknown("HOST_KEY_UNKNOWN", address=endpoint.address, detail="none yet")
    if pinned.kind not in ALGORITHMS:
        detail = f"kind {pinned.kind} is not spoken"
        raise HostKeyUnknown("HOST_KEY_UNKNOWN", address=endpoint.address, detail=detail)
    key = load_private_key(endpoint.auth) if isinstance(endpoint.auth, KeyAuth) else None
    try:
        with ADMISSION.enter(endpoint.address, endpoint.port):
            transport = _enter(endpoint, pinned, key, limits=limits, no_delay=no_delay)
    except Unreachable as error:
        if error.code != "NO_COMMON_ALGORITHM":
            raise
        # The pinned kind is gone. If the host shows a key of another kind, that is a changed key and no
        # other matter.
        found = read_host_key(endpoint.address, endpoint.port, limits=limits)
        raise _changed(endpoint.address, pinned, found) from error
    return ParamikoRunner(transport, address=endpoint.address, limits=limits)


def _enter(
    endpoint: Endpoint, pinned: HostKey, key: paramiko.PKey | None, *, limits: Limits, no_delay: bool
) -> _Transport:
    """Give a transport whose host key is the pinned one and whose account is signed in."""
    transport = _start(endpoint.address, endpoint.port, kinds=(pinned.kind,), limits=limits, no_delay=no_delay)
    try:
        _compare(endpoint.address, pinned, _read_key(transport))
        _sign_in(transport, endpoint, key, limits)
    except BaseException:
        transport.close()
        raise
    return transport


def read_host_key(address: str, port: int, *, limits: Limits = USUAL) -> HostKey:
    """Give the key the host shows, of the best kind both know, without signing in.

    Errors: Unreachable, TooManyConnections.
    """
    with ADMISSION.enter(address, port):
        transport = _start(address, port, kinds=tuple(ALGORITHMS), limits=limits)
        try:
            return _read_key(transport)
        finally:
            transport.close()


def load_private_key(auth: KeyAuth) -> paramiko.PKey:
    """Read the text of a private key. Errors: AuthRefused (KEY_NEEDS_PASSPHRASE, KEY_UNREADABLE)."""
    for kind in PRIVATE_KEY_KINDS:
        try:
            return kind.from_private_key(io.StringIO(auth.private_key_text), password=auth.passphrase)
        except paramiko.PasswordRequiredException as error:
            raise AuthRefused("KEY_NEEDS_PASSPHRASE") from error
        except Exception:  # noqa: BLE001, S112 - a damaged key raises anything: ValueError, IndexError, …
            continue
    raise AuthRefused("KEY_UNREADABLE")


def fingerprint_of_private_key(auth: KeyAuth) -> str:
    """Give `SHA256:…` of the public half, as `ssh-keygen -lf` prints it. Errors: as `load_private_key`."""
    return _as_host_key(load_private_key(auth)).fingerprint


def _changed(address: str, pinned: HostKey, found: HostKey) -> HostKeyChanged:
    return HostKeyChanged(
        "HOST_KEY_CHANGED",
        address=address,
        pinned=f"{pinned.fingerprint} ({pinned.kind})",
        found=f"{found.fingerprint} ({found.kind})",
    )


def _compare(address: str, pinned: HostKey, found: HostKey) -> None:
    if found != pinned:
        raise _changed(address, pinned, found)


def _read_key(transport: paramiko.Transport) -> HostKey:
    return _as_host_key(transport.get_remote_server_key())


def _as_host_key(key: paramiko.PKey) -> HostKey:
    return HostKey(kind=key.get_name(), base64=base64.b64encode(key.asbytes()).decode("ascii"))


def _start(address: str, port: int, *, kinds: tuple[str, ...], limits: Limits, no_delay: bool = True) -> _Transport:
    """Give a transport whose keys are exchanged and whose peer is not yet trusted."""
    sock = open_socket(address, port, timeout=limits.connect, no_delay=no_delay)
    try:
        await_ssh(sock, address=address, port=port, timeout=limits.banner)
        sock.settimeout(None)
        wanted = {name for kind in kinds for name in ALGORITHMS[kind]}
        others = [name for names in ALGORITHMS.values() for name in names if name not in wanted]
        transport = _Transport(sock, disabled_algorithms={"keys": others})
    except BaseException:
        sock.close()
        raise
    transport.banner_timeout = transport.handshake_timeout = limits.banner
    transport.auth_timeout = limits.auth
    transport.channel_timeout = limits.channel
    try:
        _negotiate(transport, address=address, port=port, timeout=limits.banner)
        transport.set_keepalive(SSH_KEEPALIVE_S)
    except BaseException:
        transport.close()
        raise
    return transport


def _negotiate(transport: paramiko.Transport, *, address: str, port: int, timeout: float) -> None:
    try:
        transport.start_client(timeout=timeout)
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise Unreachable("NO_COMMON_ALGORITHM", address=address, detail=str(error)) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        # The version line has been seen, so an end here is sshd giving up on us under load.
        raise TooManyConnections("TOO_MANY_CONNECTIONS", address=address) from error
    if not transport.initial_kex_done:  # start_client returns without a word when its time is over
        raise Unreachable("PORT_SILENT", address=address, port=port, seconds=f"{timeout:g}")


def _sign_in(transport: _Transport, endpoint: Endpoint, key: paramiko.PKey | None, limits: Limits) -> None:
    about = {"address": endpoint.address, "user": endpoint.user}
    try:
        if isinstance(endpoint.auth, KeyAuth):
            if key is None:
                raise AuthRefused("KEY_UNREADABLE")
            more = transport.auth_publickey(endpoint.user, key)
        else:
            more = transport.auth_password(endpoint.user, endpoint.auth.password)
    except paramiko.BadAuthenticationType as error:
        allowed = ", ".join(error.allowed_types) or "none"
        raise AuthRefused("AUTH_METHOD_REFUSED", allowed=allowed, **about) from error
    except paramiko.AuthenticationException as error:
        if "timeout" in str(error).lower():
            raise TimedOut("AUTH_TIMEOUT", address=endpoint.address, seconds=f"{limits.auth:g}") from error
        # With MaxAuthTries 1 sshd hangs up at the first refusal (OpenSSH 9.2, seen).
        if transport.is_active() or TOO_MANY_TRIES in transport.farewell.lower():
            raise AuthRefused("WRONG_PASSWORD" if key is None else "WRONG_KEY", **about) from error
        # "Authentication failed: transport shut down or saw EOF": nobody judged the key.
        raise ConnectionLost("CONNECTION_LOST", address=endpoint.address, detail="during the sign-in") from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise ConnectionLost("CONNECTION_LOST", address=endpoint.address, detail="during the sign-in") from error
    if more:
        raise AuthRefused("AUTH_INCOMPLETE", allowed=", ".join(more), **about)


class ParamikoRunner:
    """A Runner over one SSH connection.

    At most `limits.max_channels` channels at a time; further ones wait.
    """

    def __init__(self, transport: paramiko.Transport, *, address: str, limits: Limits) -> None:
        self._transport = transport
        self._address = address
        self._limits = limits
        self._slots = threading.BoundedSemaphore(limits.max_channels)

    @property
    def alive(self) -> bool:
        return self._transport.is_active()

    def run(self, command: Command) -> Result:
        started = time.monotonic()
        until = started + command.timeout
        with self._translate(command), self._slot(command.timeout):
            raw = self._start_channel(command)
            try:
                outcome = run_on_channel(raw, stdin=command.stdin, until=until, max_output=self._limits.max_output)
            finally:
                give_up(raw)
            self._refuse_broken_end(outcome.exit_status)
        return Result(
            exit_status=outcome.exit_status,
            stdout=outcome.stdout,
            stderr=outcome.stderr,
            seconds=time.monotonic() - started,
            truncated=outcome.truncated,
        )

    def open(self, command: Command) -> Channel:
        self._take_slot(self._limits.channel)
        try:
            with self._translate(command):
                raw = self._start_channel(command)
        except BaseException:
            self._slots.release()
            raise
        channel = ParamikoChannel(
            raw,
            translate=lambda: self._translate(command),
            is_alive=self._is_alive_after_end,
            on_close=self._slots.release,
            send_timeout=command.timeout,
            program=command.argv[0],
            address=self._address,
        )
        if command.stdin:
            channel.send(command.stdin)
        return channel

    def put(self, path: str, content: bytes, mode: int) -> None:
        put_file(self.run, address=self._address, path=path, content=content, mode=mode)

    def close(self) -> None:
        self._transport.close()

    def _start_channel(self, command: Command) -> paramiko.Channel:
        try:
            raw = self._transport.open_session(timeout=self._limits.channel)
        except paramiko.ChannelException as error:
            raise ChannelRefused("CHANNEL_REFUSED", address=self._address, detail=error.text) from error
        raw.settimeout(command.timeout)
        try:
            raw.exec_command(command.render())
        except paramiko.SSHException as error:
            give_up(raw)
            if self._transport.is_active():
                raise ChannelRefused("EXEC_REFUSED", address=self._address) from error
            raise
        return raw

    def _refuse_broken_end(self, exit_status: int | None) -> None:
        """Tell a command that ended by a signal from a connection that broke: neither has an exit status."""
        if exit_status is None and not self._is_alive_after_end():
            raise ConnectionLost("CONNECTION_LOST", address=self._address, detail="before the command ended")

    def _is_alive_after_end(self) -> bool:
        """Tell whether the connection outlives the end of a channel.

        A transport that breaks closes its channels first and says so about itself a moment later (paramiko 5.1,
        read and seen), hence the short wait.
        """
        until = time.monotonic() + SETTLE_S
        while self._transport.is_active() and time.monotonic() < until:
            time.sleep(0.01)
        return self._transport.is_active()

    def _take_slot(self, seconds: float) -> None:
        if not self._slots.acquire(timeout=seconds):
            limit = self._limits.max_channels
            raise ChannelRefused("CHANNELS_BUSY", address=self._address, limit=limit, seconds=f"{seconds:g}")

    @contextlib.contextmanager
    def _slot(self, seconds: float) -> Iterator[None]:
        self._take_slot(seconds)
        try:
            yield
        finally:
            self._slots.release()

    @contextlib.contextmanager
    def _translate(self, command: Command) -> Iterator[None]:
        """Turn what paramiko raises on an open connection into the tree; an SshError passes as it is."""
        address, program = self._address, command.argv[0]
        try:
            yield
        except SshError:
            raise
        except TimeoutError as error:
            if not self._transport.is_active():
                raise ConnectionLost("CONNECTION_LOST", address=address, detail="it fell silent") from error
            seconds = f"{command.timeout:g}"
            raise TimedOut("COMMAND_TIMEOUT", program=program, seconds=seconds, address=address) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            if "Timeout opening channel" in str(error) and self._transport.is_active():
                seconds = f"{self._limits.channel:g}"
                raise TimedOut("CHANNEL_TIMEOUT", address=address, seconds=seconds) from error
            raise ConnectionLost("CONNECTION_LOST", address=address, detail="it was closed") from error


def public_fingerprint(auth: KeyAuth) -> str:
    """Give the fingerprint of the public half, as `ssh-keygen -lf` prints it. Errors: AuthRefused."""
    key = load_private_key(auth)
    return HostKey(kind=key.get_name(), base64=base64.b64encode(key.asbytes()).decode("ascii")).fingerprint
