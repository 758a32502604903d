"""Where a host is, how it proves who it is, and how we sign in."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class HostKey:
    """A public host key as in known_hosts: `kind` (`ssh-ed25519`, `ssh-rsa` …) and base64 text."""

    kind: str
    base64: str

    def __post_init__(self) -> None:
        try:
            base64.b64decode(self.base64, validate=True)
        except binascii.Error as error:
            raise ValueError("a host key is base64 text") from error

    @classmethod
    def parse(cls, line: str) -> HostKey:
        """Read `KIND BASE64 [comment]`, the form of a .pub file; ValueError where it is not one."""
        words = line.split()
        if len(words) < 2:
            raise ValueError("a host key is its kind and base64 text")
        return cls(kind=words[0], base64=words[1])

    @property
    def fingerprint(self) -> str:
        """Give `SHA256:…` as `ssh-keygen -lf` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.base64)).digest()
        return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")

    def __str__(self) -> str:
        return f"{self.kind} {self.base64}"


@dataclass(frozen=True)
class KeyAuth:
    """Sign in with a private key (PEM or OpenSSH text). Neither part is ever shown."""

    private_key_text: str = field(repr=False)
    passphrase: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class PasswordAuth:
    """Sign in with a password, never shown."""

    password: str = field(repr=False)


@dataclass(frozen=True)
class Endpoint:
    """One account on one SSH server. `host_key` is the pinned one; without it nothing connects."""

    address: str
    port: int
    user: str
    host_key: HostKey | None
    auth: KeyAuth | PasswordAuth


@dataclass(frozen=True)
class Limits:
    """Bounds of a connection: seconds, but for the last two.

    `max_channels` stays below sshd's MaxSessions (10): the 11th channel is refused (OpenSSH 9.2, measured).
    `max_output` is bytes kept of each of stdout and stderr of one command.
    """

    connect: float = 10.0
    banner: float = 10.0
    auth: float = 15.0
    channel: float = 10.0
    max_channels: int = 8
    max_output: int = 16 * 1024 * 1024
