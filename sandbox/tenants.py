"""Tokens as tenants, and session ids that only their tenant's token could have made.

A session id carries a keyed digest. An id that is not in the table but verifies was a session of this tenant,
before a restart perhaps: the honest answer is "lost", not "unknown". Another tenant's id does not verify.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from sandbox.settings import ServiceSettings

LOCAL = "local"
"""The one tenant of a service without tokens."""
_NONCE_BYTES, _DIGEST_BYTES = 18, 12


def tenant_of(token: bytes) -> str:
    """A name for logs and tables that does not give the token away."""
    return hashlib.sha256(b"tenant:" + token).hexdigest()[:16]


class SessionIds:
    """Makes and recognises session ids."""

    def __init__(self, settings: ServiceSettings) -> None:
        tokens = [token.get_secret_value().encode() for token in settings.tokens]
        self._keys = {tenant_of(token): hashlib.sha256(b"session:" + token).digest() for token in tokens}
        self._keys[LOCAL] = hashlib.sha256(b"session:").digest()

    def new(self, tenant: str) -> str:
        """An unguessable id (144 random bits)."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return base64.urlsafe_b64encode(nonce + self._digest(tenant, nonce)).decode()

    def ours(self, session_id: str, tenant: str) -> bool:
        """Whether this tenant was once given this id."""
        try:
            raw = base64.b64decode(session_id.encode("ascii"), altchars=b"-_", validate=True)
        except ValueError:
            return False
        nonce, digest = raw[:_NONCE_BYTES], raw[_NONCE_BYTES:]
        return hmac.compare_digest(digest, self._digest(tenant, nonce))

    def _digest(self, tenant: str, nonce: bytes) -> bytes:
        return hmac.digest(self._keys[tenant], nonce, "sha256")[:_DIGEST_BYTES]
