"""What differs between sent and served weights is named by what must have happened."""

from __future__ import annotations

import pytest

from agent_rl.weights.faults import ADAPTER, FaultKind, find_faults
from agent_rl.weights.manifest import Sent, Served, TensorSum, total

NAMES = ["embed", "layers.0.q", "layers.0.k", "layers.1.q", "layers.1.k", "norm"]
TIES = {"head": "embed"}


def _sum(name: str, version: int) -> TensorSum:
    return TensorSum((2, 3), "float32", hash((name, version)) % 2**64)


def _of(version: int, names: list[str] | None = None) -> dict[str, TensorSum]:
    return {name: _sum(name, version) for name in names or NAMES}


def _sent(version: int = 5, **changes) -> Sent:
    return Sent(version, **{"ties": TIES, "tensors": _of(version), **changes})


BEFORE = _sent(4).expected


def _served(**changes: TensorSum) -> Served:
    return Served(5, _sent().expected | changes)


def _one(served: Served, sent: Sent | None = None, before: dict[str, TensorSum] | None = BEFORE):
    (fault,) = find_faults(sent or _sent(), served, before)
    return fault


def test_nothing_is_wrong_with_what_was_sent() -> None:
    assert find_faults(_sent(), _served(), BEFORE) == []
    assert find_faults(_sent(), _served(), None) == []


def test_a_stale_head_of_tied_embeddings_is_named() -> None:
    fault = _one(_served(head=BEFORE["head"]))
    assert fault.kind is FaultKind.STALE_HEAD
    assert fault.tensors == ("head",)
    assert "head is tied to embed" in fault.text


def test_a_skipped_tensor_is_named() -> None:
    fault = _one(_served(**{"layers.0.k": BEFORE["layers.0.k"]}))
    assert fault.kind is FaultKind.SKIPPED
    assert fault.tensors == ("layers.0.k",)


def test_swapped_layers_are_named() -> None:
    now = _sent().expected
    swapped = {"layers.0.q": now["layers.1.q"], "layers.1.q": now["layers.0.q"]}
    fault = _one(_served(**swapped))
    assert fault.kind is FaultKind.SWAPPED
    assert set(fault.tensors) == {"layers.0.q", "layers.1.q"}
    assert "layers.0.q is served with the weights of layers.1.q" in fault.text


@pytest.mark.parametrize("arrived", [1, 3, 4])
def test_an_update_that_stopped_half_way_is_named_by_its_first_old_tensor(arrived: int) -> None:
    fault = _one(_served(**{name: BEFORE[name] for name in NAMES[arrived:]}))
    assert fault.kind is FaultKind.HALF_UPDATE
    assert fault.tensors[0] == NAMES[arrived]
    assert f"{arrived} of 6 tensors are new" in fault.text


def test_an_update_that_was_begun_and_not_ended_is_named() -> None:
    assert _one(Served(5, _sent().expected, open=True)).kind is FaultKind.HALF_UPDATE


def test_an_update_of_which_nothing_arrived_is_named() -> None:
    kinds = [fault.kind for fault in find_faults(_sent(), Served(4, BEFORE), BEFORE)]
    assert kinds == [FaultKind.VERSION, FaultKind.NOTHING_ARRIVED]


def test_tensors_that_did_not_change_do_not_make_an_update_look_half_done() -> None:
    kept = {name: BEFORE[name] for name in ("norm", "layers.1.k")}
    sent = _sent(tensors=_of(5) | kept)
    assert find_faults(sent, Served(5, sent.expected), BEFORE) == []
    old = {name: BEFORE[name] for name in ("layers.0.k", "layers.1.q")}
    assert _one(Served(5, sent.expected | old), sent).kind is FaultKind.HALF_UPDATE


def test_a_merged_adapter_that_never_arrived_is_named() -> None:
    adapted = frozenset({"layers.0.q", "layers.1.q"})
    sent = _sent(tensors=BEFORE | {name: _sum(name, 5) for name in adapted}, ties={}, adapted=adapted)
    fault = _one(Served(5, BEFORE), sent)
    assert fault.kind is FaultKind.ADAPTER_MISSING
    assert "adapter of version 5 never arrived" in fault.text


@pytest.mark.parametrize(("version", "said"), [(None, "never arrived"), (4, "is not the one that is served")])
def test_a_separate_adapter_that_is_missing_or_old_is_named(version: int | None, said: str) -> None:
    names = [f"{ADAPTER}layers.0.q.lora_A", f"{ADAPTER}layers.0.q.lora_B"]
    sent = _sent(tensors=_of(5) | _of(5, names))
    there = {} if version is None else _of(version, names)
    fault = _one(Served(5, _sent().expected | there), sent)
    assert fault.kind is FaultKind.ADAPTER_MISSING
    assert said in fault.text
    assert fault.tensors == tuple(names)


def test_bits_of_no_known_version_are_named_with_both_sums() -> None:
    strange = _sum("nobody's", 0)
    fault = _one(_served(norm=strange))
    assert fault.kind is FaultKind.DIFFERENT
    assert str(strange) in fault.text
    assert str(_sum("norm", 5)) in fault.text


def test_tensors_without_a_counterpart_are_named() -> None:
    now = _sent().expected
    missing = {name: entry for name, entry in now.items() if name != "norm"}
    assert _one(Served(5, missing)).kind is FaultKind.NOT_SERVED
    assert find_faults(_sent(), Served(5, missing, unread=("nor",)), BEFORE) == []
    fault = _one(_served(bias=_sum("bias", 5)))
    assert (fault.kind, fault.tensors) == (FaultKind.NOT_SENT, ("bias",))


def test_the_total_depends_on_names_shapes_formats_and_sums() -> None:
    base = _of(5)
    others = [
        base | {"norm": _sum("norm", 4)},
        base | {"norm": TensorSum((3, 2), "float32", base["norm"].sum)},
        base | {"norm": TensorSum((2, 3), "bfloat16", base["norm"].sum)},
        {("norm2" if name == "norm" else name): entry for name, entry in base.items()},
    ]
    assert len({total(found) for found in [base, *others]}) == 5
    assert total(dict(reversed(base.items()))) == total(base)
