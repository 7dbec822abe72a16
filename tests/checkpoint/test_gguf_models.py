"""Language models as GGUF files are read back bit for bit, and `transformers` gives the same outputs."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from converted import save_folder as save_with_words
from folders_of_others import seeds
from gguf_models import GPT2, export_model, gpt2, llama, load_in_transformers, random_gpt2, random_llama, save_folder

from tercet.checkpoint import Card, convert, load_model, read_card
from tercet.checkpoint.foreign import gguf_model
from tercet.checkpoint.foreign.gguf_file import GgufFile, write_gguf
from tercet.config import UserError
from tercet.models import AnyModel, DecoderOnly, EncoderDecoder, EncoderDecoderSpec
from tercet.nn import ALiBi, Rotary


@torch.no_grad()
def furthest(model: AnyModel, theirs: Any) -> float:
    assert isinstance(model, DecoderOnly)
    tokens = torch.randint(model.vocab_size, (2, 31), generator=torch.Generator().manual_seed(1))
    logits = theirs(tokens) if isinstance(theirs, DecoderOnly) else theirs(input_ids=tokens, use_cache=False).logits
    return (logits - model(tokens)).abs().max().item()


def check_round_trip(tmp_path: Path, model: DecoderOnly) -> None:
    """Export, import and export again: logits and every byte of the file must be the same."""
    file = export_model(tmp_path, model)
    imported = load_model(file)
    assert furthest(model, imported.model) < 1e-5
    reexported = convert(file, tmp_path / "again", "gguf") / "model.gguf"
    assert reexported.read_bytes() == file.read_bytes()
    assert imported.card.name == "small"
    ours = load_model(convert(file, tmp_path / "in"))
    state = imported.model.state_dict()
    assert ours.model.spec == imported.model.spec
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=2, slow=4))
def test_llama_is_the_same_in_transformers(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_llama(seed)
    file = export_model(tmp_path, model)
    theirs = load_in_transformers(file, monkeypatch)
    assert type(theirs).__name__ == "LlamaForCausalLM"
    assert theirs.config.max_position_embeddings == model.spec.max_len
    assert furthest(model, theirs) < 1e-4
    assert furthest(model, load_model(file).model) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
def test_gpt2_is_the_same_in_transformers(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_gpt2(seed, wide=False)
    file = export_model(tmp_path, model)
    theirs = load_in_transformers(file, monkeypatch, n_positions=model.spec.max_len)
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    assert furthest(model, theirs) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
def test_qwen3_is_the_same_in_transformers(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_llama(seed, qk_norm=True)
    file = export_model(tmp_path, model)
    theirs = load_in_transformers(file, monkeypatch, head_dim=model.spec.stack.head_width)
    assert type(theirs).__name__ == "Qwen3ForCausalLM"
    assert furthest(model, theirs) < 1e-4
    check_round_trip(tmp_path / "again", model)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(12, fast=1))
def test_arcee_is_read_back(seed: int, tmp_path: Path) -> None:
    """`transformers` does not read these files; the log has the comparison with llama.cpp."""
    model = random_llama(seed, gated=False, activation="relu_squared")
    file = export_model(tmp_path, model)
    assert GgufFile(file).settings["general.architecture"] == "arcee"
    assert furthest(model, load_model(file).model) < 1e-5
    check_round_trip(tmp_path / "again", model)


def test_embedding_norm_is_in_the_table(tmp_path: Path) -> None:
    model = llama(embedding_norm=True, tie_embeddings=True)
    assert furthest(model, load_model(export_model(tmp_path, model)).model) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(12, fast=2))
def test_round_trip_is_bitwise_identical(seed: int, tmp_path: Path) -> None:
    check_round_trip(tmp_path, (random_llama(seed, biased=seed % 3 == 0), random_gpt2(seed))[seed % 2])


@pytest.mark.slow
def test_plain_model_is_restored(tmp_path: Path) -> None:
    for name, model in (("llama", llama(tie_embeddings=True)), ("gpt2", gpt2(tie_embeddings=False))):
        imported = load_model(export_model(tmp_path / name, model)).model
        assert imported.spec == model.spec
        state = imported.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_missing_rotary_permutation_changes_the_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    monkeypatch.setattr(gguf_model, "_interleave_rows", lambda rows, heads: rows)
    file = export_model(tmp_path, model)
    assert furthest(model, load_model(file).model) > 1e-2


def test_gguf_package_reads_the_file(tmp_path: Path) -> None:
    model = llama(tie_embeddings=True)
    read = gguf.GGUFReader(export_model(tmp_path, model))
    fields = {name: field.contents() for name, field in read.fields.items()}
    assert fields["general.architecture"] == "llama"
    assert (fields["llama.attention.head_count_kv"], fields["llama.attention.key_length"]) == (2, 6)
    assert fields["llama.rope.freq_base"] == 500.0
    assert fields["tokenizer.ggml.add_bos_token"] is False
    tensors = {tensor.name: tensor for tensor in read.tensors}
    assert "output.weight" not in tensors
    assert sum(int(tensor.n_elements) for tensor in read.tensors) == sum(p.numel() for p in model.parameters())
    assert (tensors["token_embd.weight"].data == model.embedding.weight.detach().numpy()).all()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Llama's file, which tests must copy before they change it."""
    return export_model(tmp_path_factory.mktemp("plain"), llama())


def edit_file(
    folder: Path, file: Path, settings: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None
) -> Path:
    """Write another file with some settings and tensors changed, added or (None) removed."""
    read = GgufFile(file)
    new_settings = {**read.settings, **(settings or {})}
    new_tensors = {**{name: read.tensor(name) for name in read.locations}, **(tensors or {})}
    path = folder / "edited.gguf"
    write_gguf(
        path,
        {name: value for name, value in new_settings.items() if value is not None},
        {name: tensor for name, tensor in new_tensors.items() if tensor is not None},
    )
    return path


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"general.architecture": "mamba"}, r"architecture is 'mamba'; supported: 'llama', 'qwen3', 'arcee', 'gpt2'"),
        ({"general.architecture": None}, r"architecture is None"),
        ({"llama.block_count": 3}, r"llama\.block_count is 3, but there are 2 blocks"),
        ({"llama.block_count": 4_000_000_000}, r"block_count is 4000000000, but there are 2 blocks"),
        ({"llama.embedding_length": 23}, r"shape 300x24 instead of 300x23, as set by llama\.embedding_length"),
        ({"llama.embedding_length": 2**31}, r"token_embd\.weight has shape"),
        ({"llama.feed_forward_length": 2**31}, r"blk\.0\.ffn_up\.weight has shape 29x24 instead of 2147483648x24"),
        ({"llama.attention.head_count": 2**31}, r"blk\.0\.attn_q\.weight has shape"),
        ({"llama.attention.head_count": 0}, r"head_count is 0; it must be a whole number of at least 1"),
        ({"llama.attention.head_count": [4, 4]}, r"head_count is \[4, 4\]; it must be a whole number"),
        ({"llama.attention.head_count_kv": 4}, r"blk\.0\.attn_k\.weight has shape 12x24 instead of 24x24"),
        ({"llama.attention.value_length": 7}, r"keys are 6 wide"),
        ({"llama.rope.dimension_count": 4}, r"keys are 6 wide, of which 4 are rotated"),
        ({"llama.rope.scaling.type": "longrope"}, r"rotation is scaled \(longrope\), which Tercet does not support"),
        ({"llama.rope.scaling.type": "yarn"}, r"llama\.rope\.scaling\.factor is None; it must be a number above 0"),
        ({"llama.rope.scaling.attn_factor": 1.5}, r"rope\.scaling\.attn_factor is 1\.5, which is not supported"),
        ({"llama.rope.freq_base": float("nan")}, r"rope\.freq_base is nan; it must be a number above 0"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, r"epsilon is -1\.0; it must be a number above 0"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, r"epsilon is None; it must be"),
        ({"llama.context_length": "long"}, r"context_length is 'long'; it must be a whole number"),
        ({"llama.expert_count": 8}, r"mixture of experts, which Tercet does not support"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], message: str, plain: Path, tmp_path: Path) -> None:
    file = edit_file(tmp_path, plain, settings)
    with pytest.raises(UserError, match=message) as error:
        load_model(file)
    assert str(error.value).startswith(f"{file}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"blk.1.attn_q.weight": None}, r"block 1 differs from block 0"),
        ({"blk.1.attn_q.weight": torch.zeros(1)}, r"block 1 differs from block 0 in tensors or sizes"),
        ({"blk.3.attn_q.weight": torch.zeros(1)}, r"blocks are not numbered consecutively from 0"),
        ({"blk.01.attn_q.weight": torch.zeros(1)}, r"has blk\.01\.attn_q\.weight, unlike a supported Llama"),
        ({"output_norm.weight": None}, r"lacks output_norm\.weight, unlike a supported Llama"),
        ({"odd.weight": torch.zeros(1)}, r"has odd\.weight, unlike a supported Llama"),
        ({"odd": torch.zeros(1)}, r"has odd, unlike a supported Llama"),
        ({"output_norm.bias": torch.zeros(24)}, r"norm\.bias unknown"),
        ({"output_norm.weight": torch.zeros(25)}, r"norm\.weight has shape 25, but the config requires 24"),
        ({"rope_freqs.weight": torch.full((3,), 2.0)}, r"scaled by rope_freqs\.weight unlike Llama 3\.1"),
        ({f"blk.{n}.attn_q.bias": torch.zeros(5) for n in (0, 1)}, r"bias has 5 rows; expected 4 heads of 6 rows"),
    ],
)
def test_unexpected_tensors_are_rejected(tensors: dict[str, Any], message: str, plain: Path, tmp_path: Path) -> None:
    file = edit_file(tmp_path, plain, tensors=tensors)
    with pytest.raises(UserError, match=message) as error:
        load_model(file)
    assert "\n" not in str(error.value)


def test_small_file_does_not_allocate_a_large_model(tmp_path: Path) -> None:
    wide = 1 << 20
    for name, tensors, settings in (
        ("llama", {"token_embd.weight": torch.zeros(1, wide)}, {"llama.embedding_length": wide}),
        ("gpt2", {"token_embd.weight": torch.zeros(1, wide)}, {"gpt2.embedding_length": wide}),
    ):
        model = llama() if name == "llama" else gpt2()
        file = edit_file(tmp_path, export_model(tmp_path / name, model), settings, tensors)
        with pytest.raises(UserError, match=r"has shape .* as set by .*embedding_length"):
            load_model(file)


def test_missing_biases_become_zeros(plain: Path, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    biases = {
        f"blk.{n}.attn_{part}.bias": torch.randn(size, generator=generator)
        for n in (0, 1)
        for part, size in (("q", 24), ("k", 12), ("v", 12))
    }
    state = load_model(edit_file(tmp_path, plain, tensors=biases)).model.state_dict()
    assert torch.equal(state["stack.blocks.1.self_attention.value.bias"], biases["blk.1.attn_v.bias"])
    assert not state["stack.blocks.1.self_attention.out.bias"].any()
    # In a head of width 6, the file stores the pairs (0, 3), (1, 4), (2, 5) side by side.
    queries = state["stack.blocks.0.self_attention.query.bias"][:6]
    assert torch.equal(queries[[0, 3, 1, 4, 2, 5]], biases["blk.0.attn_q.bias"][:6])


def test_frequency_factors_of_one_are_ignored(plain: Path, tmp_path: Path) -> None:
    file = edit_file(tmp_path, plain, tensors={"rope_freqs.weight": torch.ones(3)})
    assert furthest(llama(), load_model(file).model) == 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (llama(0, {"activation": "gelu_tanh"}), r"gelu_tanh, which Llama of llama\.cpp does not support; .*silu"),
        (gpt2(0, {"activation": "gelu"}), r"gelu, which GPT-2 of llama\.cpp does not support; .*gelu_tanh can"),
        (
            llama(0, {"qk_norm": True, "gated": False, "activation": "relu_squared"}),
            r"stack\.activation is relu_squared and stack\.gated is false, which Qwen3 of llama\.cpp",
        ),
        (llama(0, {"qk_norm": True, "bias": True}), r"stack\.bias\.feedforward is true, .*which Qwen3"),
        (
            llama(0, {"gated": False, "activation": "relu_squared", "bias": True}),
            r"stack\.bias\.qkv is true, stack\.bias\.out is true and stack\.bias\.feedforward is true, which Arcee",
        ),
        (llama(0, {"position": Rotary(share=0.67)}), r"stack\.position\.share is 0\.67"),
        (gpt2(0, {"position": ALiBi()}), r"stack\.position is alibi"),
        (gpt2(0, {"placement": "branch"}), r"stack\.placement is branch"),
        (gpt2(0, logit_softcap=15.0), r"logit_softcap is 15\.0"),
    ],
)  # fmt: skip
def test_unsupported_options_are_rejected_by_name(model: DecoderOnly, message: str, tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "ours", model)
    with pytest.raises(UserError, match=message) as error:
        convert(folder, tmp_path / "theirs", "gguf")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_translator_is_rejected(tmp_path: Path) -> None:
    model = EncoderDecoder(EncoderDecoderSpec(vocab_size=11, max_len=7, encoder=GPT2, decoder=GPT2))
    with pytest.raises(UserError, match=r"family is encoder-decoder, .* decoder-only or encoder-only can be converted"):
        convert(save_with_words(tmp_path / "ours", model), tmp_path / "theirs", "gguf")


def test_folder_opens_only_with_a_single_file(tmp_path: Path) -> None:
    model = llama(stack={"n_kv_heads": None}, tie_embeddings=True)
    file = export_model(tmp_path, model)
    assert furthest(model, load_model(file.parent).model) == 0
    assert load_model(file.parent).readme() == (file.parent / "README.md").read_text()
    assert load_model(file).readme() is None  # a README next to a file may be about something else
    renamed = file.with_name("other.GGUF")
    file.rename(renamed)
    assert furthest(model, load_model(renamed).model) == 0
    renamed.with_name("more.gguf").write_bytes(b"")
    with pytest.raises(UserError, match=r"theirs has 2 \.gguf files; pass one of them, such as .*more\.gguf"):
        load_model(file.parent)
    with pytest.raises(UserError, match=r"README\.md is a file; pass its folder, or a \.gguf file"):
        load_model(file.with_name("README.md"))


def test_tercet_file_is_verified_in_every_way_of_opening(tmp_path: Path) -> None:
    folder = convert(export_model(tmp_path, llama()), tmp_path / "again", "gguf")
    path = folder / "model.gguf"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for source in (path, folder):
        with pytest.raises(UserError, match=r"model\.gguf is damaged"):
            load_model(source)


def test_conversion_never_overwrites_its_source(tmp_path: Path) -> None:
    file = export_model(tmp_path, llama())
    before = file.read_bytes()
    with pytest.raises(UserError, match=r"theirs is the model to convert; choose another folder"):
        convert(file, file.parent, force=True)
    assert file.read_bytes() == before
    convert(file, tmp_path / "ours", "gguf", force=True)
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {"README.md", "manifest.json", "model.gguf"}
    readme = (tmp_path / "ours" / "README.md").read_text()
    assert readme.count("## Open it with llama.cpp") == 1


def test_card_is_the_same_with_and_without_loading_the_model(tmp_path: Path) -> None:
    file = export_model(tmp_path, llama())
    assert read_card(file) == read_card(file.parent) == load_model(file).card == Card(name="small")
    read = GgufFile(file)
    tensors = {name: read.tensor(name) for name in read.locations}
    write_gguf(tmp_path / "other.gguf", {**read.settings, "general.name": ""}, tensors)
    assert read_card(tmp_path / "other.gguf") == load_model(tmp_path / "other.gguf").card == Card(name="other")
