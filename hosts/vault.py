"""Credentials at rest: sealed with a public key, opened only where the private key is (worker and watcher).

libsodium sealed boxes (X25519, XSalsa20-Poly1305). The credential's uuid and kind are inside the box, so that a sealed
value moved to another row does not open there.
"""

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error

from django.conf import settings
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox


class VaultClosed(Exception):
    """The process was not given the private key, or the value does not open with it."""

    code = "VAULT_CLOSED"
    next_step = "Give worker and watcher the private key of the pair that sealed it; docs/install.md says how."

    @property
    def message(self) -> str:
        return str(self)


def make_pair() -> tuple[str, str]:
    """(public, private), each base64 of 32 bytes."""
    private = PrivateKey.generate()
    return b64encode(bytes(private.public_key)).decode(), b64encode(bytes(private)).decode()


def seal(*, credential_uuid: str, kind: str, secret: dict[str, str]) -> bytes:
    """The secret, readable only with the private key. Raises VaultClosed without a usable public key."""
    content = json.dumps({"credential": str(credential_uuid), "kind": kind, "secret": secret})
    try:
        key = PublicKey(b64decode(settings.VAULT_PUBLIC_KEY, validate=True))
    except (Base64Error, ValueError, TypeError, CryptoError) as error:
        raise VaultClosed("FLEETADMIN_VAULT_PUBLIC_KEY is not a key.") from error
    return SealedBox(key).encrypt(content.encode())


def unseal(*, credential_uuid: str, kind: str, sealed: bytes) -> dict[str, str]:
    """The secret of exactly this credential. Raises VaultClosed where it does not open."""
    if not settings.VAULT_PRIVATE_KEY:
        raise VaultClosed("This process was not given the vault's private key.")
    try:
        content = json.loads(SealedBox(PrivateKey(b64decode(settings.VAULT_PRIVATE_KEY))).decrypt(bytes(sealed)))
    except (CryptoError, ValueError) as error:
        raise VaultClosed("The credential does not open with this vault key.") from error
    if (content["credential"], content["kind"]) != (str(credential_uuid), kind):
        raise VaultClosed("The sealed value belongs to another credential.")
    return content["secret"]
