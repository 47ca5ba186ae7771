"""What the service answers when it does not run a program: one class a reason, each with its HTTP status."""

from __future__ import annotations

from typing import Any


class ServiceError(Exception):
    """Base. `code` is for programs, the message for people."""

    http_status = 500
    code = "internal_error"
    retryable = False

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, details: list[dict[str, Any]] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.details = details


class InvalidRequest(ServiceError):
    """The request makes no sense; nothing ran."""

    http_status = 422
    code = "invalid_request"


class TooLarge(ServiceError):
    """Source, stdin, files or batch above their bounds; nothing ran."""

    http_status = 413
    code = "too_large"


class Unauthorized(ServiceError):
    """No token, or a wrong one."""

    http_status = 401
    code = "unauthorized"


class SessionUnknown(ServiceError):
    """No such session, or one of another token."""

    http_status = 404
    code = "unknown_session"


class SessionGone(ServiceError):
    """The session was there and is lost: idle, too old, evicted, deleted, or from before a restart."""

    http_status = 410
    code = "session_lost"


class Conflict(ServiceError):
    """The request id was used for another request."""

    http_status = 409
    code = "request_id_conflict"


class Overloaded(ServiceError):
    """The queue is full (or no session is free); come back after `retry_after_s`."""

    http_status = 429
    code = "overloaded"
    retryable = True


class NotReady(ServiceError):
    """Starting, draining, or without a living slot."""

    http_status = 503
    code = "not_ready"
    retryable = True


class QueueTimeout(ServiceError):
    """No slot became free within the queue timeout; nothing ran."""

    http_status = 504
    code = "queue_timeout"
    retryable = True
