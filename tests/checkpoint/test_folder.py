"""A model folder restores the saved model for any spec, and a damaged folder raises a precise error."""

import itertools
import json
import os
import pickletools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import safetensors
import safetensors.torch
import torch

from sampled_cases import sampled
from tercet.checkpoint import Card, load_model, save_model, tokenizer_hash
from tercet.config import UserError
from tercet.models import (
    PRESETS,
    AnyModel,
    AnySpec,
    DecoderOnly,
    EncoderDecoder,
    EncoderDecoderSpec,
    build,
    model_spec,
)
from tercet.tokens import BPE, Characters, Tokenizer, Words

Model = TypeVar("Model", bound=AnyModel)

TOKENIZER = Tokenizer.train(Characters(), ["größer, ähm: 7 ≠ 8"])
SIZES = {"d_model": 24, "n_heads": 3, "n_layers": 2}
CARD = Card(
    name="tiny",
    step=500,
    tokens_seen=12_345,
    metrics={"validation_loss": 1.25},
    data_name="shakespeare",
    tokenizer_hash=TOKENIZER.hash,
    versions={"torch": "2"},
    recipe={"model": {"preset": "gpt2"}, "seeds": [1, 2]},
)


def small(preset: str, **changes: object) -> AnySpec:
    stacks = ("encoder", "decoder") if isinstance(PRESETS[preset], EncoderDecoderSpec) else ("stack",)
    sizes = {"preset": preset, "vocab_size": TOKENIZER.vocab_size, "max_len": 9, **dict.fromkeys(stacks, SIZES)}
    return model_spec(sizes | changes)


def shaken(model: Model) -> Model:
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.01 * number  # no tensor keeps its initial values
    return model


def model_of(preset: str = "gpt2", *, seed: int = 3, **changes: object) -> DecoderOnly:
    model = build(small(preset, **changes), seed=seed)
    assert isinstance(model, DecoderOnly)
    return shaken(model)


def translator_of(preset: str = "transformer-tiny", *, seed: int = 3, **changes: object) -> EncoderDecoder:
    model = build(small(preset, **changes), seed=seed)
    assert isinstance(model, EncoderDecoder)
    return shaken(model)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", model_of(), TOKENIZER, CARD)
    (tmp_path / "model" / "manifest.json").unlink()  # as in older or edited folders
    return tmp_path / "model"


GRID = list(itertools.product(PRESETS, (True, False), (1, 32)))


@pytest.mark.parametrize(("preset", "tied", "pad_to"), sampled(GRID, keep=[4 * n + n % 4 for n in range(len(PRESETS))]))
def test_saved_model_is_restored(preset: str, tied: bool, pad_to: int, tmp_path: Path) -> None:
    model = shaken(build(small(preset, tie_embeddings=tied, pad_vocab_to=pad_to), seed=3))
    save_model(tmp_path, model, TOKENIZER, CARD)
    trained_model = load_model(tmp_path)
    assert trained_model.model.spec == model.spec
    assert trained_model.card == CARD
    assert trained_model.folder == tmp_path
    assert trained_model.tokenizer.hash == TOKENIZER.hash
    assert not any(module.training for module in trained_model.model.modules())
    for name, tensor in model.state_dict().items():
        assert torch.equal(trained_model.model.state_dict()[name], tensor), name
    assert trained_model.source_tokenizer is trained_model.tokenizer
    tokens = torch.arange(5)[None] % model.vocab_size
    sides = (tokens.flip(1), tokens) if isinstance(model, EncoderDecoder) else (tokens,)
    assert torch.equal(trained_model.model(*sides), model.eval()(*sides))


def test_tied_tensor_is_stored_once_and_tied_after_loading(folder: Path) -> None:
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert file.metadata() == {"format": "pt"}
    assert "embedding.weight" in names
    assert "unembedding.weight" not in names
    model = load_model(folder).model
    assert model.embedding.weight is model.unembedding.weight
    assert model.embedding.weight.data_ptr() == model.unembedding.weight.data_ptr()


def test_tied_tensor_under_only_its_second_name_is_rejected(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["unembedding.weight"] = tensors.pop("embedding.weight")
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"embedding\.weight missing"):
        load_model(folder)


def test_two_saves_are_bitwise_identical(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        save_model(tmp_path / name, model_of(), TOKENIZER, CARD)
    save_model(tmp_path / "c", model_of(), TOKENIZER, CARD)  # replaces the first save
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    expected = "config.json generation_config.json model.safetensors tokenizer.json card.json README.md manifest.json"
    assert set(files) == set(expected.split())
    for name in ("b", "c"):
        assert {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} == files


def test_no_file_is_a_pickle(folder: Path) -> None:
    for path in folder.iterdir():
        data = path.read_bytes()
        assert not data.startswith((b"PK", b"\x80"))
        with pytest.raises(ValueError):
            list(pickletools.genops(data))


def test_loading_does_not_change_global_random_state(folder: Path) -> None:
    before = torch.get_rng_state()
    load_model(folder)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("spec", [BPE(vocab_size=300, pad=True), Words(vocab_size=9)])
def test_other_tokenizers_are_restored(spec: BPE | Words, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(spec, ["to be or not to be"])
    model = model_of(vocab_size=tokenizer.vocab_size)
    save_model(tmp_path, model, tokenizer, replace(CARD, tokenizer_hash=tokenizer.hash))
    assert load_model(tmp_path).tokenizer.encode("be or not") == tokenizer.encode("be or not")
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    assert settings["eos_token_id"] == tokenizer.eos_id
    assert settings.get("pad_token_id") == tokenizer.pad_id
    assert settings["max_new_tokens"] > 0


def test_given_state_replaces_the_models_state(tmp_path: Path) -> None:
    model = model_of()
    state = {f"_orig_mod.{name}": tensor + 1 for name, tensor in model.state_dict().items()}  # copies are not tied
    save_model(tmp_path, model, TOKENIZER, CARD, state=state)
    loaded = load_model(tmp_path).model
    assert torch.equal(loaded.embedding.weight, model.embedding.weight + 1)
    assert loaded.embedding.weight is loaded.unembedding.weight


def test_state_of_another_model_is_rejected(tmp_path: Path) -> None:
    model = model_of()
    state = model.state_dict()
    state["another"] = state.pop("embedding.weight")
    with pytest.raises(ValueError, match=r"missing \['embedding.weight'\], unknown \['another'\]"):
        save_model(tmp_path, model, TOKENIZER, CARD, state=state)


@pytest.mark.slow
def test_model_with_other_parts_than_its_spec_is_not_saved(tmp_path: Path) -> None:
    model = model_of()
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"does not describe these tensors: extra\.bias, extra\.weight; name a custom"):
        save_model(tmp_path / "model", model, TOKENIZER, CARD)
    assert not (tmp_path / "model").exists()


def test_wrapper_prefixes_are_not_saved(tmp_path: Path) -> None:
    model = model_of()
    model.stack.blocks[1] = torch.compile(model.stack.blocks[1], backend="eager")  # pyright: ignore[reportArgumentType]
    save_model(tmp_path, model, TOKENIZER, CARD)
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert not any("_orig_mod" in name for name in file.keys())  # noqa: SIM118 - not a mapping
    load_model(tmp_path)


def test_metrics_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    save_model(tmp_path, model_of(), TOKENIZER, replace(CARD, metrics={"loss": float("nan"), "best": 2.0}))
    assert load_model(tmp_path).card.metrics == {"best": 2.0}


def test_readme_describes_the_model(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    n_parameters = sum(parameter.numel() for parameter in model_of().parameters())
    for words in ("# tiny", f"| Parameters | {n_parameters:,} |", "500 steps, 12,345 tokens", "shakespeare", "1.2500"):
        assert words in text
    assert "preset: gpt2" in text


class TestTwoTokenizers:
    """A translator with a separate source vocabulary."""

    SOURCE = Tokenizer.train(Characters(alphabet="abcdefg"), [])
    CARD = replace(CARD, tokenizer_hash=tokenizer_hash(TOKENIZER, SOURCE))

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        save_model(tmp_path / "model", self.model(), TOKENIZER, self.CARD, source_tokenizer=self.SOURCE)
        (tmp_path / "model" / "manifest.json").unlink()
        return tmp_path / "model"

    def model(self) -> EncoderDecoder:
        return translator_of(source_vocab_size=self.SOURCE.vocab_size, share_embeddings=False)

    def test_both_tokenizers_are_restored(self, folder: Path) -> None:
        trained_model, model = load_model(folder), self.model().eval()
        assert (trained_model.tokenizer.hash, trained_model.source_tokenizer.hash) == (TOKENIZER.hash, self.SOURCE.hash)
        source, target = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[3, 1, 2]])
        assert torch.equal(trained_model.model(source, target), model(source, target))

    def test_three_way_tied_weights_are_stored_once(self, tmp_path: Path) -> None:
        save_model(tmp_path, translator_of(), TOKENIZER, CARD)
        with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
            names = [name for name in file.keys() if "embedding.weight" in name]  # noqa: SIM118 - not a mapping
        assert len(names) == 1
        loaded = load_model(tmp_path).model
        assert isinstance(loaded, EncoderDecoder)
        assert loaded.source_embedding.weight is loaded.embedding.weight is loaded.unembedding.weight

    def test_missing_source_tokenizer_is_reported(self, folder: Path) -> None:
        (folder / "source_tokenizer.json").unlink()
        with pytest.raises(UserError, match=r"cannot read .*source_tokenizer.json: No such file"):
            load_model(folder)

    def test_source_tokenizer_of_another_size_is_rejected(self, folder: Path) -> None:
        Tokenizer.train(Characters(), ["ab"]).save(folder / "source_tokenizer.json")
        with pytest.raises(UserError, match=r"source_tokenizer.json has \d+ ids, but config.json requires \d+; put"):
            load_model(folder)

    def test_other_source_tokenizer_of_the_same_size_is_rejected(self, folder: Path) -> None:
        Tokenizer.train(Characters(alphabet="ABCDEFG"), []).save(folder / "source_tokenizer.json")
        with pytest.raises(UserError, match=r"is not the one that the model was trained with"):
            load_model(folder)

    def test_model_with_shared_vocabulary_has_no_source_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="source_tokenizer"):
            save_model(tmp_path, translator_of(), TOKENIZER, CARD, source_tokenizer=self.SOURCE)
        with pytest.raises(ValueError, match="source_tokenizer"):
            save_model(tmp_path, self.model(), TOKENIZER, CARD)


class TestRunFolders:
    def test_best_comes_before_last(self, tmp_path: Path) -> None:
        save_model(tmp_path / "last", model_of(seed=1), TOKENIZER, CARD)
        assert load_model(tmp_path).folder == tmp_path / "last"
        save_model(tmp_path / "best", model_of(seed=2), TOKENIZER, CARD)
        assert load_model(str(tmp_path)).folder == tmp_path / "best"

    def test_last_is_not_used_for_a_broken_best(self, tmp_path: Path) -> None:
        save_model(tmp_path / "last", model_of(), TOKENIZER, CARD)
        save_model(tmp_path / "best", model_of(), TOKENIZER, CARD)
        (tmp_path / "best" / "model.safetensors").unlink()
        with pytest.raises(UserError, match=r"incomplete model in .*best: model\.safetensors missing"):
            load_model(tmp_path)


class TestWords:
    def test_missing_folder_is_reported_with_the_nearest(self, folder: Path) -> None:
        with pytest.raises(UserError, match=r"no such folder: .*modle; did you mean '.*/model'\?$"):
            load_model(folder.with_name("modle"))

    def test_missing_folder_without_a_similar_name_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"^no such folder: nowhere/at/all$"):
            load_model("nowhere/at/all")

    def test_file_instead_of_a_folder_is_rejected(self, folder: Path) -> None:
        with pytest.raises(UserError, match=r"is a file; pass its folder"):
            load_model(folder / "config.json")

    def test_folder_without_a_model_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"no model in .*: it has no config.json, best/ or last/; train one with"):
            load_model(tmp_path)

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
    def test_missing_part_is_reported(self, folder: Path, name: str) -> None:
        (folder / name).unlink()
        with pytest.raises(UserError, match=f"incomplete model in .*: {name} missing; copy the whole folder"):
            load_model(folder)

    def test_missing_tokenizer_of_transformers_can_be_written(self, folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        with pytest.raises(UserError, match=r"tokenizer\.json missing; copy the whole folder, or train again$"):
            load_model(folder)
        (folder / "tokenizer_config.json").write_text("{}")
        with pytest.raises(UserError, match=r", or write it with AutoTokenizer\.from_pretrained\('.*model'\)\.save_pr"):
            load_model(folder)

    @pytest.mark.parametrize("name", ["config.json", "card.json"])
    def test_broken_json_is_reported(self, folder: Path, name: str) -> None:
        (folder / name).write_text('{"family": ')
        with pytest.raises(UserError, match=rf"{name} is not valid JSON \(.*\); restore the saved file"):
            load_model(folder)

    def test_unknown_key_is_reported(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"max_length": 7}))
        with pytest.raises(UserError, match=r"config\.json: unknown key 'max_length'; did you mean 'max_len'\?"):
            load_model(folder)

    def test_wrong_shapes_are_reported(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["max_len"] = 7
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(
            UserError, match=r"stack.position.table.weight has shape 9x24, but the config requires 7x24"
        ):
            load_model(folder)

    def test_wrong_names_are_reported(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["stack"]["n_layers"] = 3
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=r"does not match its config.json: stack.blocks.2.\S+, .* missing"):
            load_model(folder)

    def test_untied_config_for_tied_weights_is_rejected(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"tie_embeddings": False}))
        with pytest.raises(UserError, match=r"unembedding.weight missing"):
            load_model(folder)

    def test_inconsistent_sizes_are_rejected(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["stack"]["n_heads"] = 5
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=r"config.json: d_model=24 must be divisible by n_heads=5"):
            load_model(folder)

    @pytest.mark.parametrize("left", [0, 5, 100, -1])
    def test_truncated_weights_are_rejected(self, folder: Path, left: int) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:left])
        with pytest.raises(UserError, match=r"model.safetensors is not a complete safetensors file"):
            load_model(folder)

    def test_tokenizer_of_another_size_is_rejected(self, folder: Path) -> None:
        other_tokenizer = Tokenizer.train(Characters(), ["abc"])
        other_tokenizer.save(folder / "tokenizer.json")
        with pytest.raises(UserError, match=r"tokenizer.json has 4 ids, but config.json requires \d+; put back"):
            load_model(folder)
        with pytest.raises(ValueError, match=r"tokenizers have .*'tokenizer.json': 4.* ids, but the model"):
            save_model(folder, model_of(), other_tokenizer, CARD)

    def test_another_tokenizer_of_the_same_size_is_rejected(self, folder: Path) -> None:
        other_tokenizer = Tokenizer.train(
            Characters(alphabet="".join(map(chr, range(65, 64 + TOKENIZER.vocab_size)))), []
        )
        assert other_tokenizer.vocab_size == TOKENIZER.vocab_size
        other_tokenizer.save(folder / "tokenizer.json")
        with pytest.raises(UserError, match=r"tokenizer.json is not the one that the model was trained with"):
            load_model(folder)

    @pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
    def test_folder_that_cannot_be_created_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match=r"cannot write .*file/model: Not a directory; choose another folder"):
            save_model(tmp_path / "file" / "model", model_of(), TOKENIZER, CARD)


def test_folder_without_a_card_loads(folder: Path) -> None:
    (folder / "card.json").unlink()
    (folder / "README.md").unlink()
    assert load_model(folder).card == Card(name="model")


def test_folder_can_be_moved(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder, tmp_path / "elsewhere")
    load_model(tmp_path / "elsewhere")


def test_module_without_a_spec_is_not_saved(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(Characters(), ["ab"])
    with pytest.raises(
        TypeError, match=r"a Linear has no spec; pass the result of tercet\.models\.build, or use torch"
    ):
        save_model(tmp_path / "model", torch.nn.Linear(2, 2), tokenizer, Card())  # type: ignore[arg-type]
    assert not (tmp_path / "model").exists()
