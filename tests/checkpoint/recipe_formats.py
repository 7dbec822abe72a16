"""Convert small versions of all packaged recipes to every format, and compare the results with Tercet.

    PYTHONPATH=.:tests python tests/checkpoint/recipe_formats.py                 # measure, and print the table
    PYTHONPATH=.:tests python tests/checkpoint/recipe_formats.py --recipes demo  # measure these rows
    PYTHONPATH=.:tests python tests/checkpoint/recipe_formats.py --write         # write the predictions into the guide

A recipe is trained for two steps, with texts and sentence pairs that need no download. Noise is added to the weights,
because initial weights of zero would hide errors. Then each conversion either succeeds, and another program computes
the same logits as Tercet, or it is rejected for the reasons that `tercet.export_problems` lists.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from folders_of_others import shaken
from tests.golden.golden import COMMON, SMALLER
from torch import Tensor

import tercet
from tercet.checkpoint import convert, load_model
from tercet.checkpoint.export_problems import PROBLEMS, export_problems
from tercet.checkpoint.folder import save_trained
from tercet.checkpoint.trained_model import TrainedModel
from tercet.config import Plain, UserError, merge, parse
from tercet.models import AnySpec, Classifier, EncoderDecoder, EncoderOnly, EncoderOnlySpec
from tercet.models.target_scale import remove_target_scale
from tercet.settings_yaml import merge_assignments
from tercet.tokens import BPE, Tokenizer
from tercet.training import recipe_names, train
from tercet.training.recipe.files import read_settings
from tercet.training.recipe.recipe import load_recipe

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "exporting.md"
START, END = "<!-- written by tests/checkpoint/recipe_formats.py -->", "<!-- end of the table -->"
FORMATS = tuple(PROBLEMS)
PRETRAINED = {  # recipes whose models are fine-tuned
    "finetune-chat": "demo", "finetune-classify": "bert-python-docs", "finetune-lm": "demo",
    "finetune-mlm": "bert-python-docs", "finetune-translate": "numbers", "finetune-vectors": "bert-python-docs",
}  # fmt: skip
TEXT = "".join(
    f'{ships} ships sail from the harbor, and {boats} boats return.\n"Where is the captain?" asked the cook\'s boy.\n\n'
    for ships in range(20)
    for boats in range(20)
)
TEXTS = ["where is the captain?", "7 ships", "a line that is long enough to be cut off " * 30]
QUICK = ("training.max_steps=2", "training.validate_every=2", "training.save_every=2", "training.warmup_steps=1")
ADAPTER = ("adapter={kind: lora, rank: 4, targets: [all]}", "training.optimizer.lr=0.05")
BATCH, LENGTH = 2, 9


@dataclass(frozen=True)
class Result:
    """Result of a conversion.

    Attributes:
        difference: Largest difference between the results of Tercet and the other program; None if it was not measured
            because the conversion was rejected or only predicted.
        problems: Properties of the model that prevent the conversion.
    """

    difference: float | None
    problems: tuple[str, ...]


def applies(recipe: str, to: str) -> bool:
    """Return whether there is something to convert: only an adapter has the format of peft."""
    return to != "peft" or recipe in PRETRAINED


def train_small(recipe: str, folder: Path, *, adapter: bool = False) -> Path:
    """Train a recipe for two steps, and return the folder of the run. Noise is added to the weights.

    Args:
        recipe: Name of a packaged recipe.
        folder: Folder for the run and its data.
        adapter: If True, train an adapter, without noise.
    """
    sets = (*COMMON, *QUICK, *SMALLER.get(recipe, ()), *(ADAPTER if adapter else ()))
    changes = merge(merge_assignments({}, sets), stand_in(recipe, folder))
    if recipe in PRETRAINED:
        base = folder / PRETRAINED[recipe]
        changes["pretrained"] = str(base if base.exists() else train_small(PRETRAINED[recipe], folder))
    with contextlib.redirect_stderr(io.StringIO()):
        run = train(load_recipe(recipe, changes), folder / (f"{recipe}-adapter" if adapter else recipe), quiet=True)
    if not adapter:
        for name in ("best", "last"):
            trained_model = load_model(run / name)
            shaken(trained_model.model, seed=1, by=0.02)
            save_trained(trained_model, run / name)
    return run


def stand_in(recipe: str, folder: Path) -> Plain:
    """Return changed settings of the recipe's data and tokenizer, if they would have to be downloaded."""
    settings = read_settings(recipe)
    source, path = settings["data"]["source"], folder / "data"
    if recipe == "finetune-chat":
        path = path.with_suffix(".jsonl")
        message = '{"messages": [{"role": "user", "content": "%d?"}, {"role": "assistant", "content": "%d!"}]}\n'
        path.write_text("".join(message % (n, n) for n in range(60)))
        return {"data": {"source": str(path)}}
    if settings["task"]["kind"] == "translation" and source != "numbers":
        data = {"source": "numbers", "source_language": "en", "target_language": "de"}
        return {"data": data, "training": {"devices": 1}}
    if source == "shakespeare":
        path.with_suffix(".txt").write_text(TEXT)
        tokenizer = {"tokenizer": {"kind": "bpe"}} if settings["data"]["tokenizer"] == "gpt2" else {}
        return {"data": {"source": str(path.with_suffix(".txt")), **tokenizer}}
    return {}


def results(recipe: str, folder: Path, formats: Sequence[str] = FORMATS) -> Iterator[tuple[str, Result]]:
    """Yield the formats with the results of the conversions, and check that each is as predicted.

    Raises:
        AssertionError: If `export_problems` predicts another result.
    """
    run = train_small(recipe, folder)
    for to in formats:
        if not applies(recipe, to):
            continue
        source = (train_small(recipe, folder, adapter=True) if to == "peft" else run) / "last"
        trained_model, target = load_model(source), folder / f"{recipe}-{to}"
        problems = export_problems(trained_model.model.spec, trained_model.tokenizer).get(to, [])
        try:
            convert(source, target, to)
        except UserError as error:
            message = str(error)
            first = problems[0].partition(": ")[0] if problems else "no problem"
            assert first in message or first == "family", (recipe, to, message, problems)
            yield to, Result(None, tuple(problems))
        else:
            assert not problems, (recipe, to, problems)
            yield to, Result(difference(trained_model, target, to), ())


@torch.no_grad()
def difference(trained_model: TrainedModel, folder: Path, to: str) -> float:
    """Return the largest difference between the results of Tercet and of the program that opens the folder."""
    torch.manual_seed(1)
    compare = {
        "hf": in_transformers, "sentence-transformers": in_sentence_transformers, "ctranslate2": in_ctranslate2,
        "gguf": in_gguf, "onnx": in_onnxruntime, "peft": in_peft,
    }[to]  # fmt: skip
    return compare(trained_model, folder)


def example(trained_model: TrainedModel) -> tuple[Tensor, Tensor]:
    """Return random tokens, and those of a source, which is used only by translators."""
    shape = BATCH, LENGTH
    return torch.randint(trained_model.tokenizer.vocab_size, shape), torch.randint(
        trained_model.source_tokenizer.vocab_size, shape
    )


def logits(trained_model: TrainedModel, ids: Tensor, source: Tensor) -> Tensor:
    model = trained_model.model
    if isinstance(model, EncoderDecoder):
        return model(source, ids)
    if not isinstance(model, EncoderOnly):
        return model(ids)
    hidden = model.hidden(ids)
    if model.spec.classifier is not None:
        return model.classify(hidden, None)
    return hidden if model.spec.masked_head is None else model.logits(hidden)


def in_transformers(trained_model: TrainedModel, folder: Path) -> float:
    ids, source = example(trained_model)
    return distance(logits_in_transformers(open_in_transformers(trained_model, folder), ids, source),
                    logits(trained_model, ids, source))  # fmt: skip


def open_in_transformers(trained_model: TrainedModel, folder: Path) -> Any:
    import transformers

    names = {"decoder-only": "CausalLM", "encoder-decoder": "Seq2SeqLM", "encoder-only": "MaskedLM"}
    spec = trained_model.model.spec
    opener = getattr(transformers, f"AutoModelFor{names[spec.family]}")
    if isinstance(spec, EncoderOnlySpec) and spec.classifier is not None:
        opener = transformers.AutoModelForSequenceClassification
    elif isinstance(spec, EncoderOnlySpec) and spec.masked_head is None:
        opener = transformers.AutoModel
    model, loading_info = opener.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    wrong = [key for keys in loading_info.values() for key in keys if "pooler" not in str(key)]
    assert not wrong, loading_info  # AutoModel adds a pooler to a BERT, which does not change the hidden states
    return model.eval()


def logits_in_transformers(model: Any, ids: Tensor, source: Tensor) -> Tensor:
    if model.config.is_encoder_decoder:
        return model(input_ids=source, decoder_input_ids=ids).logits
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def in_sentence_transformers(trained_model: TrainedModel, folder: Path) -> float:
    """Compare the vectors of texts; the modules of the folder are computed by `transformers`."""
    from test_sentence_export import vectors_of_files

    ours = tercet.load(trained_model.folder).embed(TEXTS, truncate=True)
    return distance(torch.from_numpy(vectors_of_files(folder, TEXTS)), torch.from_numpy(ours))


def in_ctranslate2(trained_model: TrainedModel, folder: Path) -> float:
    """Compare logits of a language model, hidden states of an encoder, log-probabilities of translations."""
    import ctranslate2
    import numpy
    import tokenizers

    def names(rows: Tensor, file: str) -> list[list[str]]:
        library: Any = tokenizers.Tokenizer.from_file(str(folder / file))
        return [[library.id_to_token(number) for number in row] for row in rows.tolist()]

    model, (ids, source) = trained_model.model, example(trained_model)
    separate = (folder / "source_tokenizer.json").exists()
    tokens = names(ids, "tokenizer.json")
    if isinstance(model, EncoderDecoder):
        tokenizer: Any = trained_model.tokenizer
        bos, eos = (torch.full((BATCH, 1), number) for number in (tokenizer.bos_id, tokenizer.eos_id))
        source_tokens = names(source, "source_tokenizer.json" if separate else "tokenizer.json")
        found = ctranslate2.Translator(str(folder)).score_batch(source_tokens, tokens)
        targets = torch.cat([ids, eos], dim=1)
        expected = model(source, torch.cat([bos, ids], dim=1)).log_softmax(-1).gather(2, targets[..., None])[..., 0]
        return distance(torch.tensor([result.log_probs for result in found]), expected)
    if isinstance(model, EncoderOnly):
        output = ctranslate2.Encoder(str(folder)).forward_batch(tokens)
        return distance(torch.from_numpy(numpy.array(output.last_hidden_state)), model.hidden(ids))
    output = ctranslate2.Generator(str(folder)).forward_batch(tokens)
    return distance(torch.from_numpy(numpy.array(output)), model(ids))


def in_gguf(trained_model: TrainedModel, folder: Path) -> float:
    """Compare the logits of the file as Tercet reads it, or the hidden states of an encoder's file.

    Tercet does not read the files of encoders, so that their tensors are loaded into a model of `transformers`.
    """
    ids, source = example(trained_model)
    if not isinstance(trained_model.model, EncoderOnly):
        return distance(logits(load_model(folder), ids, source), logits(trained_model, ids, source))
    model = encoder_of_gguf(trained_model.model, folder / "model.gguf")
    found = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    return distance(found, trained_model.model.hidden(ids))


def encoder_of_gguf(encoder: EncoderOnly, path: Path) -> Any:
    import transformers

    from tercet.checkpoint.foreign.features import rewrite_model
    from tercet.checkpoint.foreign.gguf_encoder import ENCODER_NAMES
    from tercet.checkpoint.foreign.gguf_file import GgufFile
    from tercet.checkpoint.foreign.gguf_support import nearest_encoder_architecture, without_heads
    from tercet.checkpoint.foreign.state_dict import foreign_name
    from tercet.checkpoint.foreign.transformers_folder import to_transformers

    spec = without_heads(encoder.spec)
    config, state = to_transformers(rewrite_model(encoder, spec))
    kind, config["pad_token_id"] = config.pop("model_type"), 0  # no row of a table is masked
    model: Any = transformers.AutoModel.from_config(
        transformers.AutoConfig.for_model(kind, **config), attn_implementation="eager"
    )
    file, names = GgufFile(path), ENCODER_NAMES[nearest_encoder_architecture(spec)]
    loaded = model.load_state_dict({name: file.tensor(foreign_name(name, names)) for name in state}, strict=False)
    assert not loaded.unexpected_keys, loaded
    assert all("pooler" in name or "position_ids" in name for name in loaded.missing_keys), loaded
    return model.eval()


def in_onnxruntime(trained_model: TrainedModel, folder: Path) -> float:
    """Compare the outputs of all graphs, with padding; decoders are called several times, with their cache."""
    from test_onnx import furthest_reading, furthest_translating, furthest_writing

    model, (ids, _) = trained_model.model, example(trained_model)
    if isinstance(model, EncoderDecoder):
        return max(furthest_translating(model, folder, ids))
    if isinstance(model, EncoderOnly):
        return max(furthest_reading(remove_target_scale(model), folder, ids))
    return max(furthest_writing(model, folder, ids))


def in_peft(trained_model: TrainedModel, folder: Path) -> float:
    import peft
    import transformers

    base, spec = load_model(trained_model.folder.parent / "pretrained"), trained_model.model.spec
    base_folder = convert(base.folder, folder.with_name(f"{folder.name}-base"), "hf")
    if isinstance(spec, EncoderOnlySpec) and spec.masked_head is None and spec.classifier is None:
        theirs = transformers.AutoModel.from_pretrained(base_folder, attn_implementation="eager")  # without its head
    else:
        theirs = open_in_transformers(base, base_folder)
    adapted = peft.PeftModel.from_pretrained(theirs, folder).eval()
    ids, source = example(trained_model)
    found, expected = logits_in_transformers(adapted, ids, source), logits(trained_model, ids, source)
    assert distance(logits(base, ids, source), expected) > 1e-3, "the adapter changes nothing"
    return distance(found, expected)


def distance(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference; rows of a vocabulary that are added to fill it up are left out."""
    size = min(found.shape[-1], expected.shape[-1])
    return (found[..., :size] - expected[..., :size]).abs().max().item()


def predict(recipe: str) -> dict[str, Result]:
    """Return what `export_problems` predicts for each format, without training; conversions have no difference."""
    settings = load_recipe(PRETRAINED.get(recipe, recipe))
    spec: AnySpec = settings.model
    if recipe == "finetune-classify":
        classifier = read_settings(recipe)["model"]["classifier"] | {"labels": ["a", "b"]}
        spec = replace(spec, masked_head=None, classifier=parse(Classifier, classifier))
    elif recipe == "finetune-vectors":
        spec = replace(spec, masked_head=None)
    kind = settings.data.tokenizer
    tokenizer = Tokenizer.train(BPE() if kind.kind == "gpt2" else kind, [TEXT[:5000]])
    problems = export_problems(spec, tokenizer)
    return {to: Result(None, tuple(problems.get(to, ()))) for to in FORMATS if applies(recipe, to)}


def cell(result: Result | None) -> str:
    """Return a cell of the table: a difference, "yes" if it is not measured, the reasons of a rejection, or a dash."""
    if result is None:
        return "–"
    if result.problems:
        return "no: " + "; ".join(result.problems)
    return "yes" if result.difference is None else f"{result.difference:.0e}".replace("e-0", "e-")


def table(rows: Mapping[str, Mapping[str, Result]]) -> str:
    """Return the Markdown table of recipes and formats."""
    lines = [f"| recipe | {' | '.join(FORMATS)} |", "|---" * (len(FORMATS) + 1) + "|"]
    lines += [f"| `{recipe}` | {' | '.join(cell(row.get(to)) for to in FORMATS)} |" for recipe, row in rows.items()]
    return "\n".join(lines)


def write_table(guide: str) -> str:
    """Return the text of the guide with the current predictions for all recipes."""
    before, _, rest = guide.partition(START)
    predictions = table({recipe: predict(recipe) for recipe in recipe_names()})
    return f"{before}{START}\n\n{predictions}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(recipe_names()))
    parser.add_argument("--write", action="store_true", help=f"write predictions into {GUIDE.relative_to(ROOT)}")
    options = parser.parse_args()
    if options.write:
        GUIDE.write_text(write_table(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    rows: dict[str, dict[str, Result]] = {}
    for recipe in options.recipes:
        with tempfile.TemporaryDirectory() as folder:
            rows[recipe] = dict(results(recipe, Path(folder)))
        print(table({recipe: rows[recipe]}).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
