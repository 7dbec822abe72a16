"""Training goes on from a folder of `transformers`, whichever of the families it is, as from one of ours."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tiny_runs import tiny_labels_recipe, tiny_masked_recipe, tiny_recipe

from tercet.checkpoint import convert, load_model
from tercet.config import merge, to_plain
from tercet.training import Recipe, parse_recipe, train

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *map(str, range(57)), ".", "is", "times", "cat", "cow", "red"]
SIZES: dict[str, Any] = {"vocab_size": len(WORDS), "num_hidden_layers": 1, "num_attention_heads": 3}
STILL = {"training": {"optimizer": {"kind": "adam", "lr": 0.0}, "max_steps": 1}}


def folder_of(path: Path, model: Any) -> Path:
    """The folder of one of theirs, beside a tokenizer of words."""
    torch.manual_seed(3)
    model.save_pretrained(path)
    built = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    built.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.WhitespaceSplit(), tokenizers.pre_tokenizers.Punctuation()]
    )
    built.add_special_tokens([tokenizers.AddedToken(word, special=True) for word in WORDS[:5]])
    built.save(str(path / "tokenizer.json"))
    return path


def qwen3() -> Any:
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**SIZES, hidden_size=18, intermediate_size=29, num_key_value_heads=1, head_dim=8,
                                 max_position_embeddings=8, bos_token_id=0, eos_token_id=2, pad_token_id=1)
    )  # fmt: skip


def roberta(kind: Any = transformers.RobertaForMaskedLM) -> Any:
    return kind(
        transformers.RobertaConfig(**SIZES, hidden_size=18, intermediate_size=29, max_position_embeddings=12,
                                   type_vocab_size=1)
    )  # fmt: skip


def distilbert() -> Any:
    config = transformers.DistilBertConfig(
        vocab_size=len(WORDS), n_layers=1, n_heads=3, dim=18, hidden_dim=29, max_position_embeddings=10, num_labels=5
    )
    return transformers.DistilBertForSequenceClassification(config)


def going_on(folder: Path, recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    data = to_plain(recipe)
    data["model"] = {}
    return parse_recipe(merge(merge(data, {"pretrained": str(folder)}), changes), name="going on")


@pytest.mark.parametrize(
    ("build", "tiny", "written"),
    [
        (qwen3, tiny_recipe, "Qwen3ForCausalLM"),
        (roberta, tiny_masked_recipe, "BertForMaskedLM"),
        (distilbert, tiny_labels_recipe, "DistilBertForSequenceClassification"),
    ],
)
def test_a_run_goes_on_from_it_and_leaves_as_it(build: Any, tiny: Any, written: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "theirs", build())
    before = load_model(folder)
    still = train(going_on(folder, tiny(tmp_path), STILL), tmp_path / "still", quiet=True)
    same, state = load_model(still / "last").model.state_dict(), before.model.state_dict()
    own = [name for name in same if not name.startswith("classifier.")]  # the labels are others
    assert own
    assert all(torch.equal(same[name], state[name]) for name in own)
    out = train(going_on(folder, tiny(tmp_path), {"training": {"max_steps": 3}}), tmp_path / "run", quiet=True)
    after = load_model(out / "last")
    assert after.tokenizer.hash == before.tokenizer.hash
    assert not torch.equal(after.model.state_dict()["embedding.weight"], state["embedding.weight"])
    again = convert(out, tmp_path / "again", "hf")
    theirs = getattr(transformers, written).from_pretrained(again).eval()
    tokens = torch.randint(5, len(WORDS), (2, 5))
    logits = theirs(input_ids=tokens).logits
    with torch.no_grad():
        match after.task:
            case "labels":
                hidden = after.require("classify").model.hidden(tokens)
                ours = after.require("classify").model.classify(hidden)
            case _:
                ours = after.model(tokens)
    assert (logits - ours).abs().max() < 1e-5


def test_a_classifier_takes_a_roberta_and_gets_a_new_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path / "theirs", roberta(transformers.RobertaModel))
    out = train(going_on(folder, tiny_labels_recipe(tmp_path), STILL), tmp_path / "run")
    assert "new: classifier.weight, classifier.bias" in capsys.readouterr().err
    before, after = (load_model(path).model.state_dict() for path in (folder, out / "last"))
    assert torch.equal(before["stack.position.table.weight"], after["stack.position.table.weight"])
