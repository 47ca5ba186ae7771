"""Shares of tensor-parallel workers cover every tensor exactly once; shared memory hands tensors over as they are."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agent_rl.weights.checksum import checksum
from agent_rl.weights.vllm.memory import Segment, received
from agent_rl.weights.vllm.pieces import Piece, fused_parts, pieces

PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _add_up(workers: list[tuple[Any, str, torch.Tensor]], parts: list[str]) -> dict[str, tuple[int, int]]:
    """Name -> (sum, elements) over all workers."""
    found: dict[str, tuple[int, int]] = {}
    for number, (module, name, local) in enumerate(workers):
        for piece in pieces(module, name, tuple(local.shape), parts, number):
            part = local[piece.start : piece.stop]
            before = found.get(piece.name, (0, 0))
            total = (before[0] + checksum(part, row=piece.row, column=piece.column)) % 2**64
            found[piece.name] = (total, before[1] + part.numel())
    return found


def _expect(whole: dict[str, torch.Tensor]) -> dict[str, tuple[int, int]]:
    return {name: (checksum(tensor), tensor.numel()) for name, tensor in whole.items()}


@pytest.mark.parametrize(("size", "heads", "kv_heads"), [(1, 4, 2), (2, 4, 2), (4, 8, 2), (2, 4, 4)])
def test_fused_attention_is_told_apart_and_replicated_heads_count_once(size: int, heads: int, kv_heads: int) -> None:
    head, hidden = 6, 10
    whole = {
        "l.q_proj.weight": _random(heads * head, hidden),
        "l.k_proj.weight": _random(kv_heads * head, hidden),
        "l.v_proj.weight": _random(kv_heads * head, hidden) + 1,
    }
    replicas = max(1, size // kv_heads)
    own, own_kv = heads // size, max(1, kv_heads // size)
    workers = []
    for rank in range(size):
        module = SimpleNamespace(
            tp_rank=rank, tp_size=size, head_size=head, num_heads=own, num_kv_heads=own_kv,
            total_num_heads=heads, total_num_kv_heads=kv_heads, num_kv_head_replicas=replicas,
        )  # fmt: skip
        first, first_kv = rank * own * head, (rank // replicas) * own_kv * head
        rows = [
            whole["l.q_proj.weight"][first : first + own * head],
            whole["l.k_proj.weight"][first_kv : first_kv + own_kv * head],
            whole["l.v_proj.weight"][first_kv : first_kv + own_kv * head],
        ]
        workers.append((module, "l.qkv_proj.weight", torch.cat(rows)))
    assert _add_up(workers, PACKED["qkv_proj"]) == _expect(whole)


@pytest.mark.parametrize("size", [1, 2])
def test_other_layers_add_up(size: int) -> None:
    gate, up = _random(8, 5), _random(8, 5) + 1
    column, row, bias, norm = _random(12, 5), _random(5, 12), _random(12), _random(7)
    fused, columns, rows, plain = [], [], [], []
    biases = []
    for rank in range(size):
        share = slice(rank * 8 // size, (rank + 1) * 8 // size)
        module = SimpleNamespace(tp_rank=rank, tp_size=size, output_sizes=[8, 8])
        fused.append((module, "m.gate_up_proj.weight", torch.cat([gate[share], up[share]])))
        share = slice(rank * 12 // size, (rank + 1) * 12 // size)
        by_rows = SimpleNamespace(
            tp_rank=rank, tp_size=size, input_size=5, input_size_per_partition=5, output_size=12,
            output_size_per_partition=12 // size,
        )  # fmt: skip
        columns.append((by_rows, "m.c.weight", column[share]))
        biases.append((by_rows, "m.c.bias", bias[share]))
        by_columns = SimpleNamespace(
            tp_rank=rank, tp_size=size, input_size=12, input_size_per_partition=12 // size, output_size=5,
            output_size_per_partition=5,
        )  # fmt: skip
        rows.append((by_columns, "m.r.weight", row[:, share]))
        plain.append((SimpleNamespace(), "norm.weight", norm))  # a layer that knows nothing of other workers
    expected = _expect({"m.gate_proj.weight": gate, "m.up_proj.weight": up})
    assert _add_up(fused, PACKED["gate_up_proj"]) == expected
    assert _add_up(columns, []) == _expect({"m.c.weight": column})
    assert _add_up(biases, []) == _expect({"m.c.bias": bias})
    assert _add_up(rows, []) == _expect({"m.r.weight": row})
    assert _add_up(plain, []) == _expect({"norm.weight": norm})


def test_padding_of_a_vocabulary_is_left_out() -> None:
    table = _random(10, 3)
    padded = torch.cat([table, torch.full((6, 3), 9.0)])
    workers = []
    for rank in range(2):
        indices = SimpleNamespace(org_vocab_start_index=rank * 8, org_vocab_end_index=min(10, (rank + 1) * 8))
        module = SimpleNamespace(tp_rank=rank, tp_size=2, shard_indices=indices, org_vocab_size=10)
        workers.append((module, "embed.weight", padded[rank * 8 : (rank + 1) * 8]))
    assert _add_up(workers, []) == _expect({"embed.weight": table})


def test_a_layer_that_is_not_fused_stands_for_itself() -> None:
    assert fused_parts("model.layers.0.self_attn.qkv_proj", PACKED) == PACKED["qkv_proj"]
    assert fused_parts("model.norm", PACKED) == ()
    (piece,) = pieces(SimpleNamespace(), "model.norm.weight", (4,), ())
    assert piece == Piece("model.norm.weight", 0, 4, 0, 0, (4,))


def test_shared_memory_is_written_again_and_again_and_leaves_nothing_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    segment = Segment()
    for round_number in range(3):
        size = 5 + 1000 * round_number
        given = [
            ("a", _random(size, 3)),
            ("b", _random(7).to(torch.bfloat16)),
            ("empty", torch.empty(0, 4)),
            ("strided", _random(4, 6).T),
            ("whole numbers", torch.arange(5)),
        ]
        parcels = segment.write(given)
        found = list(received(segment.path, parcels))
        assert [name for name, _ in found] == [name for name, _ in given]
        for (_, mine), (_, theirs) in zip(given, found, strict=True):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)
    kept = found[0][1].clone()
    segment.write([("a", torch.zeros(size, 3))])
    assert torch.equal(found[0][1], kept)  # what was received is a copy
    segment.close()
    segment.close()
    assert len(os.listdir("/proc/self/fd")) == before
