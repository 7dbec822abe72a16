"""The recipe multi30k-de-en with the forms of T5, umT5 and T5Gemma trains, and other programs open its model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import load_in_transformers

from sampled_cases import sampled
from tercet.checkpoint import convert, load_model
from tercet.models import EncoderDecoder
from tercet.training import train
from tercet.training.recipe.recipe import load_recipe

ctranslate2 = pytest.importorskip("ctranslate2")
STACK = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "qk_norm": False}
FORMS: dict[str, tuple[dict[str, Any], bool, str]] = {  # settings of a stack, embedding_norm, class in transformers
    "t5": ({"position": "relative_bias"}, False, "T5ForConditionalGeneration"),
    "umt5": ({"position": {"kind": "relative_bias", "per_layer": True}}, True, "UMT5ForConditionalGeneration"),
    "t5gemma": ({"position": "rotary", "placement": "sandwich"}, True, "T5GemmaForConditionalGeneration"),
}


def trained(form: str, folder: Path) -> Path:
    """Train two steps on a few pairs instead of the captions, and return the folder of the model."""
    settings, embedding_norm, _ = FORMS[form]
    (folder / "pairs.tsv").write_text("".join(f"ein Hund {n} mal\ta dog {n} times\n" for n in range(40)))
    changes: dict[str, Any] = {
        "task": {"batch_tokens": 64},
        "data": {
            "source": str(folder / "pairs.tsv"), "source_language": None, "target_language": None,
            "validation": {"kind": "drawn", "count": 4}, "tokenizer": {"vocab_size": 280},
        },
        "model": {
            "max_len": 16, "embedding_norm": embedding_norm, "encoder": {**STACK, **settings},
            "decoder": {**STACK, **settings},
        },
        "training": {
            "max_epochs": None, "max_steps": 2, "validate_every": 2, "save_every": 2, "accelerator": "cpu",
            "compile": "never",
        },
    }  # fmt: skip
    return train(load_recipe("multi30k-de-en", changes), folder / "run", quiet=True) / "last"


@pytest.mark.slow
@pytest.mark.parametrize("form", sampled(FORMS, keep=(0, 1)))
def test_trained_translator_is_the_same_in_other_programs(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(form, tmp_path)
    trained_model = load_model(run)
    model, tokenizer = trained_model.model, trained_model.tokenizer
    assert isinstance(model, EncoderDecoder)
    sources = ["ein Hund 7 mal", "ein Hund 31 mal"]
    rows = [[*trained_model.source_tokenizer.encode(text), tokenizer.eos_id] for text in sources]
    target = torch.tensor([[tokenizer.bos_id, *tokenizer.encode("a dog 12 times"), tokenizer.eos_id]])

    theirs = load_in_transformers(convert(run, tmp_path / "hf", "hf"), transformers.AutoModelForSeq2SeqLM)
    assert type(theirs).__name__ == FORMS[form][2]
    translator = ctranslate2.Translator(str(convert(run, tmp_path / "ct2", "ctranslate2")))
    for row in rows:
        source = torch.tensor([row])
        with torch.no_grad():
            logits = model(source, target[:, :-1])
            assert (theirs(input_ids=source, decoder_input_ids=target[:, :-1]).logits - logits).abs().max() < 1e-5
        expected = logits[0].log_softmax(-1).gather(1, target[0, 1:, None])[:, 0]
        library = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "hf" / "tokenizer.json"))
        texts = [library.convert_ids_to_tokens(ids) for ids in (row, target[0, 1:-1].tolist())]
        (result,) = translator.score_batch([texts[0]], [texts[1]])
        torch.testing.assert_close(torch.tensor(result.log_probs), expected, atol=1e-4, rtol=0)
