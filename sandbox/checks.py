"""Checks of a request before anything runs: sizes, file names, base64; and limits clamped to the maxima."""

from __future__ import annotations

import base64
import binascii
import re

from sandbox.errors import InvalidRequest, TooLarge
from sandbox.schemas import ExecuteRequest, Limits
from sandbox.settings import ServiceSettings

_DRIVE = re.compile(r"^[A-Za-z]:")
MAX_NAME_BYTES = 1024
PROGRAM_NAME = "main.py"
"""Where the supervisor writes a stateless program."""


def prepared(request: ExecuteRequest, settings: ServiceSettings, *, session: bool) -> tuple[ExecuteRequest, list[str]]:
    """The request as it will run, and notes on what was changed. Raises InvalidRequest, TooLarge."""
    _check_text("code", request.code, settings.max_source_bytes)
    if request.prelude:
        _check_text("prelude", request.prelude, settings.max_source_bytes)
    if request.stdin:
        _check_text("stdin", request.stdin, settings.max_stdin_bytes)
    if request.files or request.fetch_files:
        _check_files(request, settings, session=session)
    if request.request_id is not None and not 0 < len(request.request_id) <= 200:
        raise InvalidRequest("request_id must have 1 to 200 characters", details=_at("request_id"))
    if request.seed is not None and not 0 <= request.seed < 2**32:
        raise InvalidRequest(f"seed is {request.seed}; it must be in 0 ... 2**32 - 1", details=_at("seed"))
    limits, notes = effective_limits(request.limits, settings)
    if limits is not request.limits:
        request = request.model_copy(update={"limits": limits})
    return request, notes


def effective_limits(asked: Limits, settings: ServiceSettings) -> tuple[Limits, list[str]]:
    """Fill what the caller left out from the service's defaults and clamp the rest to its maxima."""
    named = asked.model_fields_set
    if not named:
        return settings.default_limits, []
    notes, values = [], {}
    for field in named:
        value, most = getattr(asked, field), getattr(settings.max_limits, field)
        if value > most:
            notes.append(f"limits.{field}: {value:g} is above the maximum; {most:g} was used")
            value = most
        values[field] = value
    return settings.default_limits.model_copy(update=values), sorted(notes)


def _check_text(field: str, text: str, bound: int) -> None:
    # UTF-8 has at least one byte a character and at most four: most texts are settled without encoding them.
    if len(text) * 4 <= bound:
        return
    if len(text) > bound or len(text.encode("utf-8", "surrogatepass")) > bound:
        raise TooLarge(f"{field} is longer than {bound} bytes", details=_at(field))


def _check_files(request: ExecuteRequest, settings: ServiceSettings, *, session: bool) -> None:
    for field, names in (("files", request.files), ("fetch_files", request.fetch_files)):
        if len(names) > settings.max_files:
            raise TooLarge(f"{field} has {len(names)} entries; at most {settings.max_files}", details=_at(field))
        for name in names:
            check_name(name, field)
    if not session and PROGRAM_NAME in request.files:
        raise InvalidRequest(f"files: {PROGRAM_NAME!r} is the program itself; send it as `code`", details=_at("files"))
    for name in request.files:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in request.files:
                raise InvalidRequest(
                    f"files: {'/'.join(parts[:depth])!r} is both a file and the folder of {name!r}",
                    details=_at("files", name),
                )
    total = 0
    for name, content in request.files.items():
        total += len(content) * 3 // 4
        if total > settings.max_upload_bytes + 2 * len(request.files):
            raise TooLarge(f"files have more than {settings.max_upload_bytes} bytes", details=_at("files"))
        try:
            base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as wrong:
            raise InvalidRequest(
                f"files: the content of {name!r} is not base64: {wrong}", details=_at("files", name)
            ) from None


def check_name(name: str, field: str) -> None:
    """Accept a relative path that stays in the work directory on every system. Raises InvalidRequest."""
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or _DRIVE.match(name) or name.startswith("/"):
        reason = "must be a relative path with forward slashes"
    elif any(part in ("", ".", "..") for part in parts):
        reason = "must not have empty, `.` or `..` parts"
    elif len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES or any(
        len(p.encode("utf-8", "replace")) > 255 for p in parts
    ):
        reason = f"is too long (255 bytes a part, {MAX_NAME_BYTES} in all)"
    else:
        return
    raise InvalidRequest(f"{field}: the name {name[:100]!r} {reason}", details=_at(field, name[:100]))


def _at(*where: str) -> list[dict[str, object]]:
    return [{"loc": list(where)}]
