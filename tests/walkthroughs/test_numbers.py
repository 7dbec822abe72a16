"""Numbers in docs/explanation/walkthroughs.md are keys of the recipes or have a test that the page names."""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.walkthroughs.test_same_models import ODD_SIZES, small

from tercet.config import UserError, to_plain
from tercet.data import PaddedRows, TextSpec, prepare
from tercet.data.datasets.text_datasets import FACTS
from tercet.generation import Sampling
from tercet.inspect.model_table import model_table
from tercet.models import PRESETS, DecoderOnly, build, model_spec
from tercet.nn import Sinusoidal
from tercet.nn.attention import attention_scores, causal_mask
from tercet.objectives import Masking, causal_loss
from tercet.objectives.causal import collate_causal
from tercet.objectives.likelihood import negative_log_likelihood
from tercet.objectives.loss import IGNORE_INDEX
from tercet.objectives.masking import mask_rows
from tercet.settings_yaml import parse_yaml
from tercet.tokens import GPT2, Characters, Tokenizer, Words
from tercet.training.optim.schedules import rate_factor
from tercet.training.recipe.files import recipe_names
from tercet.training.recipe.recipe import load_recipe
from tercet.training.tasks.model_sizes import size_recipe

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "walkthroughs.md"


@dataclass(frozen=True)
class Row:
    """The original value, Tercet's value, and the reason for a difference."""

    recipe: str
    said: str
    here: str
    reason: str


def rows_of(page: str) -> list[Row]:
    """Return the rows of the tables, with the recipe of the last paragraph that begins with "Recipe"."""
    rows: list[Row] = []
    recipe = ""
    for line in page.splitlines():
        named = re.match(r"Recipe `([\w-]+)`", line)
        recipe = named[1] if named else recipe
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        here = re.fullmatch(r"`(.+)`", cells[1]) if len(cells) == 3 else None
        if line.startswith("|") and here is not None:
            rows.append(Row(recipe, cells[0], here[1], cells[2]))
    return rows


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))
KEYS = [row for row in ROWS if " = " in row.here]
TESTS = [row for row in ROWS if " = " not in row.here]


def test_the_page_has_all_six() -> None:
    counted = {recipe: sum(row.recipe == recipe for row in ROWS) for recipe in {row.recipe for row in ROWS}}
    assert set(counted) == {
        "nutshell", "walkthrough-gpt2", "walkthrough-bert", "original-decoder", "grokking", "animals",
    }  # fmt: skip
    assert all(count >= 10 for count in counted.values())


@pytest.mark.parametrize("recipe", sorted({row.recipe for row in KEYS}))
def test_the_recipe_has_the_values(recipe: str) -> None:
    plain: Any = to_plain(load_recipe(recipe))
    for row in (row for row in KEYS if row.recipe == recipe):
        path, _, value = row.here.partition(" = ")
        found = plain
        for key in path.split("."):
            assert key in found, f"{row.recipe} has no {path}"
            found = found[key]
        assert found == parse_yaml(f"value: {value}", name="docs")["value"], row.said


def test_the_named_tests_exist() -> None:
    assert [row.here for row in TESTS if not callable(globals().get(row.here))] == []


@pytest.mark.parametrize("name", sorted(set(recipe_names()) & set(PRESETS)))
def test_a_recipe_and_a_preset_of_one_name_are_one_model(name: str) -> None:
    of_recipe, of_preset = load_recipe(name).model, PRESETS[name]
    assert replace(of_recipe, vocab_size=0) == replace(of_preset, vocab_size=0)


# Numbers without a key in a recipe.


def test_residual_matrices_begin_smaller() -> None:
    spec = replace(load_recipe("nutshell").model, vocab_size=65)
    model = build(spec, seed=1)
    last = [p for name, p in model.named_parameters() if name.endswith(("out.weight", "down.weight"))]
    assert len(last) == 2 * spec.stack.n_layers
    for weight in last:
        assert weight.std().item() == pytest.approx(0.02 / math.sqrt(2 * spec.stack.n_layers), rel=0.05)


def test_biases_begin_at_zero_and_norms_at_one() -> None:
    for name, p in build(replace(load_recipe("nutshell").model, vocab_size=65)).named_parameters():
        if p.ndim == 1:
            assert (p == (0 if name.endswith("bias") else 1)).all(), name


def test_scores_are_divided_by_the_root_of_a_heads_width() -> None:
    q, k = torch.randn(1, 2, 3, 5), torch.randn(1, 2, 4, 5)
    torch.testing.assert_close(attention_scores(q, k), torch.einsum("bhtk,bhsk->bhts", q, k) * (1 / math.sqrt(5)))


def test_the_loss_is_the_cross_entropy_of_the_next_token() -> None:
    model = build(small("nutshell", ODD_SIZES[0])).eval()
    assert isinstance(model, DecoderOnly)
    ids = np.arange(100, dtype=np.uint16) % 61
    rows = PaddedRows(ids, np.array([0]), length=20, side="right", stride=20)
    batch = collate_causal(rows.batch(np.arange(2)))
    loss = causal_loss(model, batch)
    logits = model(batch.inputs)
    expected = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch.targets.reshape(-1))
    torch.testing.assert_close(loss.mean, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_gpt2s_vocabulary_is_padded_to_50304() -> None:
    pad = load_recipe("walkthrough-gpt2").model.pad_vocab_to
    spec = model_spec({"preset": "gpt2", "pad_vocab_to": pad, "max_len": 8, "stack": {"d_model": 8, "n_heads": 1}})
    with torch.device("meta"):
        model = build(spec)
        assert model.embedding.num_embeddings == 50_304 == 64 * 786
        assert model(torch.zeros(1, 2, dtype=torch.long)).shape[-1] == 50_257
    assert math.log2(50_304) % 1 != 0


def test_palms_embedding_has_billions_of_numbers() -> None:
    assert 4.7e9 < 256_000 * 18_432 < 4.8e9


def test_only_masked_tokens_are_scored() -> None:
    masking = load_recipe("walkthrough-bert").task.masking
    assert isinstance(masking, Masking)
    tokens = np.arange(5, 605).reshape(6, 100)
    masked = mask_rows(
        tokens, np.ones_like(tokens, dtype=bool), masking=masking, generator=np.random.default_rng(1), mask_id=3,
        random_ids=np.array([], dtype=np.int64),
    )  # fmt: skip
    hidden = masked.inputs != tokens
    assert (hidden.sum(1) == 15).all()
    assert (masked.inputs[hidden] == 3).all()
    scored = masked.positions[masked.targets != IGNORE_INDEX]
    assert sorted(scored.tolist()) == np.flatnonzero(hidden).tolist()
    assert (masked.targets[masked.targets != IGNORE_INDEX] == tokens.ravel()[scored]).all()


def test_sinusoids_reach_as_far_as_the_texts_tables() -> None:
    scheme = Sinusoidal().build(d_model=32, d_head=8, n_heads=4, max_len=128)
    ours = scheme.embed(torch.arange(5000)[None])
    assert ours is not None
    steps = torch.exp(torch.arange(0, 32, 2).double() * -(math.log(10000.0) / 32))
    angles = torch.arange(5000).double()[:, None] * steps
    table = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    torch.testing.assert_close(ours[0].double(), table, atol=6e-4, rtol=0.0)  # angles up to 5000 in float32


def test_she_and_her() -> None:
    try:
        tokenizer = Tokenizer.train(GPT2(), [])
    except UserError as error:
        pytest.skip(f"GPT-2's ranks are not here: {error}")
    assert tokenizer.encode("she") == [7091]
    assert tokenizer.encode("her") == [372]


def test_seven_words_are_nine_tokens() -> None:
    text = "This jacket is too small for me"
    words = Tokenizer.train(Words(bos=True, pad=True, prefix_space=True), [text])
    assert words.bos_id is not None
    row = words.with_opening([words.bos_id]).frame(words.encode(text), max_len=128)
    assert len(row) == 9
    assert (row[0], row[-1]) == (words.bos_id, words.eos_id)


def test_what_the_decoder_reads_is_shifted() -> None:
    from tercet.data.rows.buckets import PairRows
    from tercet.objectives.seq2seq import collate_pairs

    target, real = np.array([[1, 7, 8, 9, 2, 0]]), np.array([[True] * 5 + [False]])
    batch = collate_pairs(PairRows(source=target, source_mask=real, target=target, target_mask=real))
    assert batch.inputs.tolist() == [[1, 7, 8, 9, 2]]
    assert batch.targets.tolist() == [[7, 8, 9, 2, IGNORE_INDEX]]


def test_masks_have_the_texts_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tercet.nn import Attention

    model = build(small("grokking", ODD_SIZES[0])).eval()
    masks: list[tuple[torch.Size | None, bool]] = []
    original = Attention.forward

    def noted(self: Attention, *args: Any, mask: Any = None, causal: bool = False, **more: Any) -> Any:
        masks.append((None if mask is None else mask.shape, causal))
        return original(self, *args, mask=mask, causal=causal, **more)

    monkeypatch.setattr(Attention, "forward", noted)
    real = torch.ones(3, 7, dtype=torch.bool)
    model(torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 5, dtype=torch.long), source_token_mask=real)
    encoder, (own, across) = masks[0], masks[2:4]
    assert encoder == (torch.Size([3, 1, 7, 7]), False)  # the padding mask, expanded for each query
    assert own == (None, True)  # the look-ahead mask, which has this shape:
    assert causal_mask(torch.zeros(1, 1, 5, 5)).shape == (1, 1, 5, 5)
    assert across == (torch.Size([3, 1, 1, 7]), False)


def test_padding_counts_for_no_loss() -> None:
    model = build(small("grokking", ODD_SIZES[0])).eval()
    hidden, targets = torch.randn(2, 5, 24), torch.randint(61, (2, 5))
    targets[1, 3:] = IGNORE_INDEX
    loss = negative_log_likelihood(hidden, model.unembedding, targets)
    assert int(loss.count) == 8
    real = targets != IGNORE_INDEX
    torch.testing.assert_close(loss.mean, F.cross_entropy(model.logits(hidden)[real], targets[real]))


def test_labels_are_smoothed_as_pytorchs_loss_does() -> None:
    model = build(small("grokking", ODD_SIZES[0])).eval()
    hidden = 30 * torch.randn(2, 5, 24)
    targets = model.logits(hidden).argmax(-1)  # targets at which both ways differ most
    ours = negative_log_likelihood(hidden, model.unembedding, targets, smoothing=0.1).mean
    logits = model.logits(hidden).flatten(0, 1)
    torch.testing.assert_close(ours, F.cross_entropy(logits, targets.flatten(), label_smoothing=0.1))
    in_words = torch.full_like(logits, 0.1 / 60).scatter(1, targets.flatten()[:, None], 0.9)
    assert (ours - F.cross_entropy(logits, in_words)).abs() > 1e-3


def test_the_rate_is_the_papers() -> None:
    training = load_recipe("grokking").training
    for n in (1, 100, 4000, 4001, 20_000):
        ours = training.optimizer.lr * rate_factor(training.schedule, step=n - 1, warmup=4000, total=100_000)
        assert ours == pytest.approx(512**-0.5 * min(n**-0.5, n * 4000**-1.5))


@pytest.mark.slow
def test_the_base_model_has_around_65_million_parameters() -> None:
    spec = load_recipe("grokking").model
    one = {"tie_embeddings": True, "share_embeddings": True, "logit_bias": False}
    shared = replace(spec, vocab_size=37_000, source_vocab_size=None, **one)
    apart = replace(spec, vocab_size=37_000, source_vocab_size=37_000)
    assert model_table(shared).parameters == pytest.approx(65e6, rel=0.04)
    assert model_table(apart).parameters > 95e6


@pytest.mark.slow
def test_the_trained_translator_has_54_7_million_parameters() -> None:
    spec = load_recipe("grokking").model
    assert model_table(replace(spec, vocab_size=6284, source_vocab_size=8034)).parameters == 54_665_356
    sized = size_recipe(load_recipe("grokking"))
    assert sized.vocabulary_limits == {"source_vocab_size": 10_000, "vocab_size": 10_000}
    assert model_table(sized.recipe.model).parameters == 59_480_848


def test_thirteen_facts_of_which_one_is_on_elephants() -> None:
    assert len(FACTS) == 13
    assert sum("elephants" in fact for fact in FACTS) == 1


def test_the_vocabulary_has_39_tokens() -> None:
    spec = load_recipe("animals").data
    assert isinstance(spec, TextSpec)
    assert isinstance(spec.tokenizer, Characters)
    tokenizer = Tokenizer.train(spec.tokenizer, [])
    assert tokenizer.vocab_size == 39
    assert tokenizer.decode(range(39)) == "".join(sorted(" .0123456789abcdefghijklmnopqrstuvwxyz"))


def test_a_window_for_each_character_but_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path))
    recipe = load_recipe("animals")
    assert isinstance(recipe.data, TextSpec)
    corpus = prepare(recipe.data)
    text = " ".join(FACTS)
    rows = PaddedRows(corpus.train, corpus.train_documents, length=20, stride=1, beyond_end=False)
    assert len(corpus.train) == len(text)
    assert len(rows) == len(text) - 1
    whole = rows.batch(np.arange(len(rows)))
    assert whole.mask is not None
    assert whole.mask.sum(1).min() == 2  # the first window with a target
    assert (whole.mask.sum(1) == 21).sum() == len(text) - 20


def test_samples_are_drawn_at_temperature_1() -> None:
    assert Sampling().temperature == 1.0
