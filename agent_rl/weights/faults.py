"""What is wrong with served weights, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent_rl.weights.manifest import Sent, Served, TensorSum

ADAPTER = "adapter:"
"""Heads the names of adapter tensors that are sent without being merged."""


class FaultKind(StrEnum):
    """Ways in which a hand-over fails."""

    STALE_HEAD = "stale_head"
    """The output head is tied to the embedding, which is new, and is itself of the version before."""
    SKIPPED = "skipped"
    """Single tensors are of the version before."""
    SWAPPED = "swapped"
    """A tensor is served in the place of another one."""
    HALF_UPDATE = "half_update"
    """From some tensor on, everything is of the version before, or the update was never ended."""
    NOTHING_ARRIVED = "nothing_arrived"
    """All is of the version before."""
    ADAPTER_MISSING = "adapter_missing"
    """The engine serves without the adapter, or with an older one."""
    DIFFERENT = "different"
    """The bits are neither those sent nor known ones."""
    NOT_SERVED = "not_served"
    """A tensor was sent that the engine has no place for."""
    NOT_SENT = "not_sent"
    """The engine has a tensor that was not sent."""
    VERSION = "version"
    """The engine says that it serves another version."""
    CANARY = "canary"
    """Log-probs of trainer and engine differ by more than the limit."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding; `tensors` are the names concerned, the first being the one to look at."""

    kind: FaultKind
    tensors: tuple[str, ...]
    text: str


def find_faults(sent: Sent, served: Served, before: Mapping[str, TensorSum] | None) -> list[Fault]:
    """Compare what is served with what was sent, and say what must have happened to what differs.

    Args:
        before: what the version before consisted of, tied names included; None if it is not known.
    """
    expected, found = sent.expected, served.tensors
    wrong = {name: found[name] for name in expected if name in found and found[name] != expected[name]}
    faults = [*_adapter(sent, served, wrong), *_version(sent, served)]
    wrong = {name: entry for name, entry in wrong.items() if not name.startswith(ADAPTER)}
    stale = {name for name, entry in wrong.items() if before is not None and before.get(name) == entry}
    faults += _stale(sent, before or {}, stale)
    rest = {name: entry for name, entry in wrong.items() if name not in stale}
    faults += _swapped(expected, rest)
    if other := list(rest):
        faults.append(
            Fault(
                FaultKind.DIFFERENT,
                tuple(other),
                f"{_listed(other)} served with other bits than were sent (sent {expected[other[0]]}, served "
                f"{wrong[other[0]]}), neither this version's nor the one before's",
            )
        )
    return faults + _strays(expected, served)


def _version(sent: Sent, served: Served) -> list[Fault]:
    if served.open:
        return [Fault(FaultKind.HALF_UPDATE, (), f"the update to version {sent.version} was begun and never finished")]
    if served.version != sent.version:
        return [
            Fault(FaultKind.VERSION, (), f"it says that it serves version {served.version}, {sent.version} was sent")
        ]
    return []


def _adapter(sent: Sent, served: Served, wrong: Mapping[str, TensorSum]) -> list[Fault]:
    names = [name for name in sent.tensors if name.startswith(ADAPTER)]
    missing = [name for name in names if name not in served.tensors]
    if not names or ADAPTER in served.unread or not (missing or wrong.keys() & set(names)):
        return []
    if len(missing) == len(names):
        text = (
            f"the adapter of version {sent.version} never arrived: the engine serves none of its {len(names)} tensors"
        )
        return [Fault(FaultKind.ADAPTER_MISSING, tuple(missing), text)]
    bad = missing + [name for name in names if name in wrong]
    text = f"the adapter of version {sent.version} is not the one that is served: {_listed(bad)} not as sent"
    return [Fault(FaultKind.ADAPTER_MISSING, tuple(bad), text)]


def _swapped(expected: Mapping[str, TensorSum], wrong: dict[str, TensorSum]) -> list[Fault]:
    """Takes out of `wrong` what is another tensor's."""
    owners = {entry: name for name, entry in expected.items()}
    swapped = {name: owners[entry] for name, entry in wrong.items() if entry in owners}
    if not swapped:
        return []
    for name in swapped:
        del wrong[name]
    pairs = [f"{name} is served with the weights of {owner}" for name, owner in list(swapped.items())[:4]]
    more = f", and {len(swapped) - 4} more" if len(swapped) > 4 else ""
    return [Fault(FaultKind.SWAPPED, tuple(swapped), "; ".join(pairs) + more)]


def _stale(sent: Sent, before: Mapping[str, TensorSum], stale: set[str]) -> list[Fault]:
    if not stale:
        return []
    old = f"of version {sent.version - 1} or older"
    heads = [name for name in stale if name in sent.ties and sent.ties[name] not in stale]
    faults = [
        Fault(
            FaultKind.STALE_HEAD,
            (name,),
            f"{name} is tied to {sent.ties[name]}, which is new, but is served as a stale copy {old}",
        )
        for name in sorted(heads)
    ]
    order = [name for name, entry in sent.tensors.items() if before.get(name) != entry]
    late = [name for name in order if name in stale]
    if not late:
        return faults
    if len(late) == len(order) and sent.adapted.issuperset(order):
        text = (
            f"the adapter of version {sent.version} never arrived: {_listed(late)} served without it, {old}; "
            "all of them are tensors that it is merged into"
        )
        return [Fault(FaultKind.ADAPTER_MISSING, tuple(late), text), *faults]
    if len(late) == len(order):
        text = f"none of the {len(order)} tensors that changed arrived: all are {old}"
        return [Fault(FaultKind.NOTHING_ARRIVED, tuple(late), text), *faults]
    if len(late) > 1 and late == order[-len(late) :]:
        text = (
            f"the update to version {sent.version} stopped half-way: {len(order) - len(late)} of {len(order)} tensors "
            f"are new, from {late[0]} on they are {old}"
        )
        return [Fault(FaultKind.HALF_UPDATE, tuple(late), text), *faults]
    return [Fault(FaultKind.SKIPPED, tuple(late), f"{_listed(late)} skipped: served {old}"), *faults]


def _strays(expected: Mapping[str, TensorSum], served: Served) -> list[Fault]:
    faults = []
    silent = (ADAPTER, *served.unread)
    if lost := [n for n in expected if n not in served.tensors and not n.startswith(silent)]:
        faults.append(
            Fault(FaultKind.NOT_SERVED, tuple(lost), f"{_listed(lost)} sent, but the engine serves no such tensor")
        )
    if extra := [n for n in served.tensors if n not in expected]:
        faults.append(
            Fault(FaultKind.NOT_SENT, tuple(extra), f"{_listed(extra)} served by the engine and never sent to it")
        )
    return faults


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
