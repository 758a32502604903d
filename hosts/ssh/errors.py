"""What can go wrong on the wire. One tree; each leaf has stable codes.

    SshError                     code, message, next_step, numbers, transient
    ├── Unreachable              HOST_UNREACHABLE (t) · PORT_CLOSED (t) · PORT_SILENT (t) · NAME_UNKNOWN ·
    │                            NAME_SERVICE_SILENT (t) · NOT_SSH · NO_COMMON_ALGORITHM
    ├── TooManyConnections       TOO_MANY_CONNECTIONS (t): MaxStartups, or dropped before the first line ·
    │                            SIGN_INS_UNDER_WAY (t): the bound of this process (admission.py)
    ├── HostKeyUnknown           HOST_KEY_UNKNOWN: none pinned yet, or of a kind that is not spoken
    ├── HostKeyChanged           HOST_KEY_CHANGED: both fingerprints in `numbers`; there is no switch to go on
    ├── AuthRefused              WRONG_KEY · WRONG_PASSWORD · KEY_UNREADABLE · KEY_NEEDS_PASSPHRASE ·
    │                            AUTH_METHOD_REFUSED · AUTH_INCOMPLETE
    ├── TimedOut                 AUTH_TIMEOUT (t) · CHANNEL_TIMEOUT (t) · COMMAND_TIMEOUT · NOTHING_RECEIVED
    ├── ConnectionLost           CONNECTION_LOST (t)
    ├── ChannelRefused           CHANNELS_BUSY (t) · CHANNEL_REFUSED (t) · EXEC_REFUSED
    └── WriteRefused             WRITE_REFUSED · DISK_FULL

(t): `transient`, so that the same call may succeed a little later. Never for authentication or a host key:
repeating those locks accounts and trains people to click through. A non-zero exit of a command is a Result
and is not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping


class SshError(Exception):
    """Base of the tree.

    `texts` maps a code to (transient, sentence, next step); both texts are filled from `numbers`.
    """

    texts: ClassVar[dict[str, tuple[bool, str, str]]] = {}

    def __init__(self, code: str, **numbers: object) -> None:
        transient, sentence, next_step = self.texts[code]
        self.code = code
        self.numbers: Mapping[str, object] = numbers
        self.transient = transient
        self.message = sentence.format(**numbers)
        self.next_step = next_step.format(**numbers)
        super().__init__(f"{code}: {self.message}")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.code, dict(self.numbers)))


def _rebuild(kind: type[SshError], code: str, numbers: dict[str, object]) -> SshError:
    return kind(code, **numbers)


class Unreachable(SshError):
    texts: ClassVar[dict[str, tuple[bool, str, str]]] = {
        "HOST_UNREACHABLE": (
            True,
            "{address} did not answer ({detail}).",
            "Check that the machine is on and that the network and its firewall let this server reach it.",
        ),
        "PORT_CLOSED": (
            True,
            "{address} is up, but nothing listens on port {port}.",
            "Start sshd there, or correct the port of the host.",
        ),
        "PORT_SILENT": (
            True,
            "Port {port} of {address} accepted the connection and then said nothing for {seconds} s.",
            "Check that port {port} belongs to sshd and that the machine is not overloaded.",
        ),
        "NAME_UNKNOWN": (
            False,
            "The name {address} is not known here.",
            "Correct the address, or add the name to the DNS this server asks.",
        ),
        "NAME_SERVICE_SILENT": (
            True,
            "Nobody could say just now what the name {address} stands for.",
            "Look at the name servers that this server asks (/etc/resolv.conf).",
        ),
        "NOT_SSH": (
            False,
            "Something other than an SSH server answers on port {port} of {address}.",
            "Correct the port of the host.",
        ),
        "NO_COMMON_ALGORITHM": (
            False,
            "{address} offers no key exchange, cipher or host key that is accepted here ({detail}).",
            "Update OpenSSH on the host, or allow current algorithms in its sshd_config.",
        ),
    }


class TooManyConnections(SshError):
    texts: ClassVar[dict[str, tuple[bool, str, str]]] = {
        "TOO_MANY_CONNECTIONS": (
            True,
            "{address} dropped the connection before SSH began; sshd does so when too many log in at once.",
            "Wait a moment. If it stays so, raise MaxStartups in its sshd_config, or end its ban.",
        ),
        "SIGN_INS_UNDER_WAY": (
            True,
            "The connection to {address} waited {seconds} s for its turn: too many sign-ins are under way.",
            "Wait a moment. If it stays so, look for hosts that let nobody in and for the load of this server.",
        ),
    }


class HostKeyUnknown(SshError):
    texts: ClassVar[dict[str, tuple[bool, str, str]]] = {
        "HOST_KEY_UNKNOWN": (
            False,
            "No usable host key is pinned for {address} ({detail}).",
            "Enrol the host: compare the fingerprint shown with the one on the machine, then confirm it.",
        ),
    }


class HostKeyChanged(SshError):
    texts: ClassVar[dict[str, tuple[bool, str, str]]] = {
        "HOST_KEY_CHANGED": (
            False,
            "The host key of {address} is not the pinned one: pinned {pinned}, found {found}.",
            "Find out why. If the machine was reinstalled, enrol it anew; if not, take it for an attack.",
        ),
    }


class AuthRefused(SshError):
    texts: ClassVar[dict[str, tuple[bool, str, str]]] = {
        "WRONG_KEY": (
            False,
            "{address} does not accept this key for the account {user}.",
            "Add its public half to ~{user}/.ssh/authorized_keys, writable by {user} only.",
        ),
        "WRONG_PASSWORD": (
            False,
            "{address} does not accept this password for the account {user}.",
            "Correct the account or the password, or use a key.",
        ),
        "KEY_UNREADABLE": (
            False,
            "The private key cannot be read: damaged, of an unknown format, or the passphrase is wrong.",
            "Give an Ed25519, ECDSA or RSA key in OpenSSH format (`ssh-keygen -p -f KEY` converts).",
        ),
        "KEY_NEEDS_PASSPHRASE": (
            False,
            "The private key is encrypted and no passphrase was given.",
            "Give the passphrase, or a key without one.",
        ),
        "AUTH_METHOD_REFUSED": (
            False,
            "{address} does not allow this kind of sign-in for {user}; it allows: {allowed}.",
            "Use one of the allowed kinds, or change the host's sshd_config.",
        ),
        "AUTH_INCOMPLETE": (
            False,
            "{address} asks for more after this key or password: {allowed}.",
            "Let the account {user} sign in with one step (AuthenticationMethods in sshd_config).",
        ),
    }


class TimedOut(SshError):
    texts: ClassVar[dict[str, tuple[bool, str, str]]] = {
        "AUTH_TIMEOUT": (
            True,
            "{address} did not decide about the sign-in within {seconds} s.",
            "Look at the load of the host and at its name and account services (DNS, LDAP, PAM).",
        ),
        "CHANNEL_TIMEOUT": (
            True,
            "{address} did not open a channel within {seconds} s.",
            "Look at the load of the host; the connection may be about to break.",
        ),
        "COMMAND_TIMEOUT": (
            False,
            "`{program}` did not end within {seconds} s on {address}; it may still run there.",
            "Look at the load and the disks of the host (a hanging network file system is the usual cause).",
        ),
        "NOTHING_RECEIVED": (
            False,
            "Nothing was received from `{program}` on {address} for {seconds} s.",
            "Look at the load of the host.",
        ),
    }


class ConnectionLost(SshError):
    texts: ClassVar[dict[str, tuple[bool, str, str]]] = {
        "CONNECTION_LOST": (
            True,
            "The connection to {address} broke ({detail}).",
            "What was started there goes on; it is found again at the next connection.",
        ),
    }


class ChannelRefused(SshError):
    texts: ClassVar[dict[str, tuple[bool, str, str]]] = {
        "CHANNELS_BUSY": (
            True,
            "All {limit} channels of the connection to {address} were in use for {seconds} s.",
            "Wait until something that runs there has ended.",
        ),
        "CHANNEL_REFUSED": (
            True,
            "{address} refused another channel on this connection ({detail}).",
            "A channel counts until its command has ended; wait, or raise MaxSessions in sshd_config.",
        ),
        "EXEC_REFUSED": (
            False,
            "{address} refused to run a command for this account.",
            "Look for ForceCommand, a restricted shell or `command=` in authorized_keys.",
        ),
    }


class WriteRefused(SshError):
    texts: ClassVar[dict[str, tuple[bool, str, str]]] = {
        "WRITE_REFUSED": (
            False,
            "{path} could not be written on {address}: {detail}",
            "Check the folder and its permissions for the account that signs in.",
        ),
        "DISK_FULL": (
            False,
            "{path} could not be written on {address}: no space is left ({wanted} bytes were needed).",
            "Free some space in the home folder of the account, or name another state folder.",
        ),
    }
