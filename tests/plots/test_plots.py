"""Plots show measured values: lines, points and images are compared with their sources."""

import math
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from plotted import LETTERS, ROOM, TEXT, WORDS, gpt, images, lines, translator, words, write

from tercet.checkpoint.metrics import COLUMNS, read_metrics
from tercet.config import UserError
from tercet.inspect.recording import read
from tercet.models import DecoderOnly, EncoderDecoder
from tercet.nn.specs import ALiBi, Learned, NoPosition, Position, RelativeBias, Rotary, Sinusoidal
from tercet.plots import (
    NothingToDraw,
    plot_attention,
    plot_loss,
    plot_neighbors,
    plot_positions,
    plot_schedule,
    plot_score,
)
from tercet.plots.neighbors import choose_distinctive_tokens, components, embeddings, find_token, nearest_tokens
from tercet.spec import spec
from tercet.tokens import BPE, Characters, Tokenizer, WordPiece
from tercet.training.tasks.plan import Plan

pytestmark = pytest.mark.slow  # matplotlib is slow


def test_losses_equal_those_of_the_file(tmp_path: Path) -> None:
    rows: list[dict[str, float | str]] = [
        {"step": step, "epoch": step / 3, "train/loss": 7 / step, "lr": 0.1, "seconds": 30 * step}
        for step in range(1, 12)
    ]
    rows[4] |= {"val/loss": 2.5, "val/unigram_entropy": 3.1}
    rows[9] |= {"val/loss": 1.25}
    figure = plot_loss(write(tmp_path / "metrics.csv", rows), title="run")
    assert figure.axes[0].get_yscale() == "log"
    curves = lines(figure)
    assert curves["training"][0] == [2, 5, 8, 11]  # means of the epochs, drawn after the batches
    batches = figure.axes[0].lines[0]
    assert list(batches.get_xdata()) == list(range(1, 12))
    assert list(batches.get_ydata()) == pytest.approx([7 / step for step in range(1, 12)])
    assert curves["validation"] == ([5, 10], [2.5, 1.25])
    assert curves["counting tokens (unigram entropy)"][1] == [3.1, 3.1]
    assert "lowest 1.2500 at step 10; last 1.2500" in words(figure)


@pytest.mark.parametrize("log_every", [1, 4])
@pytest.mark.parametrize(("n_steps", "last_steps"), [(20, [5, 10, 15, 19]), (19, [5, 10, 15, 19]), (18, [5, 10, 15])])
def test_the_mean_of_each_finished_epoch_is_drawn(
    tmp_path: Path, log_every: int, n_steps: int, last_steps: list[int]
) -> None:
    """Epochs have 33 rows and steps 7, so a step may cross an epoch boundary. The last step is logged."""
    plan = Plan(n_rows=33, unit=7)
    logged_steps = [step for step in range(1, n_steps + 1) if step % log_every == 0 or step in (1, n_steps)]
    rows: list[dict[str, float | str]] = [
        {"step": step, "epoch": plan.epoch(step - 1), "train/loss": 1.0 + step} for step in logged_steps
    ]
    curve = lines(plot_loss(write(tmp_path / "metrics.csv", rows), title="run"))["training"]
    groups = [[step for step in logged_steps if int(plan.epoch(step - 1)) == epoch] for epoch in range(5)]
    finished_epochs = [steps for epoch, steps in enumerate(groups) if steps and plan.epoch(n_steps) >= epoch + 1]
    assert curve[0] == [steps[-1] for steps in finished_epochs]
    assert curve[1] == pytest.approx([1.0 + sum(steps) / len(steps) for steps in finished_epochs])
    assert log_every > 1 or curve[0] == last_steps


def test_the_loss_without_smoothing_is_preferred(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.csv", [{"step": 1, "train/loss": 3, "train/nll": 2}])
    assert lines(plot_loss(path, title="run"))["training"] == ([1], [2.0])


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.77, 2.8), (1.5, 4.2), (0.02, 9.0), (1e-6, 9.0)])
def test_every_scale_has_ticks_that_can_be_read(tmp_path: Path, low: float, high: float) -> None:
    rows: list[dict[str, float | str]] = [{"step": 1, "train/loss": high}, {"step": 2, "train/loss": low}]
    figure = plot_loss(write(tmp_path / "metrics.csv", rows), title="run")
    figure.draw_without_rendering()
    bottom, top = figure.axes[0].get_ylim()
    ticks = [tick for tick in figure.axes[0].get_yticks() if bottom <= tick <= top]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels() if label.get_text()]
    assert 2 <= len(ticks) <= 13
    assert len(set(labels)) == len(labels)


def test_scores_against_minutes(tmp_path: Path) -> None:
    rows: list[dict[str, float | str]] = [
        {"step": 10, "val/loss": 2, "val/accuracy": 0.5, "val/f1": 0.25, "seconds": 60},
        {"step": 20, "val/loss": 1, "val/accuracy": 0.75, "val/f1": 0.5, "seconds": 150},
        {"step": 30, "val/loss": 1, "val/accuracy": 0.7},  # the time is missing
    ]
    path = write(tmp_path / "metrics.csv", rows)
    curves = lines(plot_score(path, title="run"))
    assert curves == {"accuracy": ([1.0, 2.5], [0.5, 0.75]), "F1": ([1.0, 2.5], [0.25, 0.5])}
    assert len(plot_loss(path, title="run").axes) == 2
    bleu = write(tmp_path / "b.csv", [{"step": 5, "val/loss": 1, "val/bleu": 31, "seconds": 90}])
    assert lines(plot_score(bleu, title="run")) == {"BLEU": ([1.5], [31.0])}
    assert lines(plot_loss(bleu, title="run"), 1) == {"BLEU": ([1.5], [31.0])}
    numbers = [{"step": 5, "val/loss": 1, "val/rmse": 9, "val/pearson": 0.5, "val/spearman": -0.25, "seconds": 90}]
    figure = plot_loss(write(tmp_path / "d.csv", numbers), title="run")  # pyright: ignore[reportArgumentType]
    assert lines(figure, 1) == {"Pearson": ([1.5], [0.5]), "Spearman": ([1.5], [-0.25])}
    assert figure.axes[1].get_ylim()[0] < -0.25
    assert "share of the variance" in figure.axes[0].get_ylabel()
    with pytest.raises(NothingToDraw, match="or correlation; plot loss instead"):
        plot_score(write(tmp_path / "c.csv", [{"step": 1, "train/loss": 2}]), title="run")


def test_the_schedule_and_its_parts(tmp_path: Path) -> None:
    rates = [0.5, 1.0, 1.0, 1.0, 0.5, 0.25]
    columns = (*COLUMNS, "lr/adam", "momentum")
    rows: list[dict[str, float | str]] = [
        {"step": 10 * n, "lr": rate, "lr/adam": rate / 10, "momentum": 0.9} for n, rate in enumerate(rates)
    ]
    figure = plot_schedule(write(tmp_path / "metrics.csv", rows, columns), title="run")
    first, second, *_ = figure.axes
    assert [list(line.get_ydata()) for line in first.lines] == [rates, pytest.approx([rate / 10 for rate in rates])]
    assert list(first.lines[0].get_xdata()) == [0, 10, 20, 30, 40, 50]
    assert [list(line.get_ydata()) for line in second.lines] == [[0.9] * 6]
    text = words(figure)
    assert "warm-up: to step 10" in text
    assert "decay: from step 30" in text
    assert [(patch.get_x(), patch.get_width()) for patch in first.patches] == [(0, 10), (30, 20)]
    flat = plot_schedule(write(tmp_path / "b.csv", [{"step": n, "lr": 1} for n in (1, 2)]), title="run")
    assert "warm-up" not in words(flat)
    assert "decay" not in words(flat)
    with pytest.raises(NothingToDraw, match="no learning rate yet"):
        plot_schedule(write(tmp_path / "c.csv", [{"step": 1, "train/loss": 2}]), title="run")


NUMBERS = st.one_of(
    st.just(""), st.sampled_from([0.0, 1e-30, 1e9, math.nan, math.inf, -math.inf]), st.floats(1e-4, 1e4)
)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(st.fixed_dictionaries(dict.fromkeys(COLUMNS[1:], NUMBERS)), max_size=4))
@example(data=[dict.fromkeys(("val/loss", "val/unigram_entropy"), 1e9)])  # one value for all lines
def test_any_file_is_drawn_or_rejected(tmp_path: Path, data: list[dict[str, float | str]]) -> None:
    path = write(tmp_path / "metrics.csv", [{"step": n + 1, **row} for n, row in enumerate(data)])
    for plot in (plot_loss, plot_score, plot_schedule):
        with suppress(NothingToDraw):
            plot(path, title="run").draw_without_rendering()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(st.dictionaries(st.sampled_from(COLUMNS[1:]), st.floats(allow_nan=False)), max_size=9))
def test_reading_gives_what_was_written(tmp_path: Path, data: list[dict[str, float]]) -> None:
    path = write(tmp_path / "metrics.csv", [{"step": n, **row} for n, row in enumerate(data)])
    columns = read_metrics(path)
    for name in COLUMNS[1:]:
        assert columns[name] == [(n, row[name]) for n, row in enumerate(data) if name in row]


def test_files_of_older_runs_are_read_and_invalid_ones_rejected(tmp_path: Path) -> None:
    old = write(tmp_path / "old.csv", [{"step": 1, "train/loss": 4, "lr": 1}], ("step", "train/loss", "lr"))
    assert lines(plot_loss(old, title="run"))["training"] == ([1], [4.0])
    for text in ("step,lr\n1,2\n2,hot\n", "a,b\n1,2\n", "step,lr\n,1\n", "step,lr\n1,2,3\n"):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(UserError, match=r"bad\.csv line [123]: invalid line of metrics"):
            read_metrics(tmp_path / "bad.csv")
    with pytest.raises(UserError, match=r"cannot read .*none\.csv: No such file"):
        read_metrics(tmp_path / "none.csv")


@pytest.mark.parametrize("position", [Learned(), Sinusoidal()], ids=lambda position: position.kind)
def test_positions_equal_those_of_the_model(position: Position) -> None:
    trained_model = gpt(position)
    assert isinstance(trained_model.model, DecoderOnly)
    vectors = trained_model.model.stack.position.embed(torch.arange(ROOM)[None])
    assert vectors is not None
    table, similarities = images(plot_positions(trained_model))
    expected = vectors[0].detach()
    assert np.array_equal(table, expected.numpy())
    expected_similarities = [[float(torch.cosine_similarity(a, b, dim=0)) for b in expected] for a in expected]
    assert np.allclose(similarities, expected_similarities, atol=1e-6)


@pytest.mark.parametrize("base", [Sinusoidal, ALiBi])
def test_positions_of_a_third_party_scheme(base: Any) -> None:
    """A third-party scheme is labeled with its kind."""

    @spec
    class Mine(base):
        kind: Literal["mine"] = "mine"

    trained_model = gpt(base())
    mine = replace(trained_model, model=copy(trained_model.model))
    mine.model.stack = copy(trained_model.model.stack)
    mine.model.stack.spec = replace(trained_model.model.stack.spec, position=Mine())
    text = words(plot_positions(mine))
    assert "the vector of mine" in text or "bias of mine at each distance" in text
    assert "ALiBi" not in text


def test_rotary_angles_and_wavelengths() -> None:
    figure = plot_positions(gpt(Rotary(base=50.0)))
    (cos,) = images(figure)
    angles = [[p * 50.0 ** (-2 * pair / 8) for pair in range(4)] for p in range(ROOM)]
    assert np.allclose(cos, np.cos(angles), atol=1e-5)
    wavelengths = figure.axes[1].lines[0].get_ydata()
    assert np.allclose(wavelengths, [2 * math.pi * 50.0 ** (2 * pair / 8) for pair in range(4)], rtol=1e-5)
    assert "1 of 4 pairs make a full turn" in words(figure)  # 6.3, 16.7, 44.4 and 118 tokens, with a context of 13
    assert "4 of 8 numbers rotated" in words(plot_positions(gpt(Rotary(share=0.5))))


def test_alibi_and_no_position() -> None:
    figure = plot_positions(gpt(ALiBi()))
    slopes = [2**-4, 2**-8, 2**-2]  # of two heads; the third is that of four heads
    for line, slope in zip(figure.axes[0].lines, slopes, strict=True):
        assert np.allclose(line.get_ydata(), [-slope * distance for distance in range(ROOM)])
    with pytest.raises(NothingToDraw, match=r"has no position scheme \(position: none\)"):
        plot_positions(gpt(NoPosition()))


def test_a_learned_bias_of_what_a_decoder_sees() -> None:
    trained_model = gpt(RelativeBias(n_buckets=8, max_distance=9, per_layer=True))
    figure = plot_positions(trained_model)
    scheme = trained_model.model.stack.position
    table, buckets = scheme.tables[0].weight, scheme.buckets(torch.arange(ROOM - 1, -1, -1)[None, None])[0, 0]
    for head, line in enumerate(figure.axes[0].lines):
        assert list(line.get_xdata()) == list(range(1 - ROOM, 1))
        assert np.allclose(line.get_ydata(), table[buckets, head].detach())
    (image,) = images(figure)
    assert np.isnan(np.asarray(image.filled(np.nan) if np.ma.isMaskedArray(image) else image)[0, 1:]).all()
    assert "learned bias of each distance (of block 0)" in words(figure)


def test_a_long_context_shows_its_beginning() -> None:
    figure = plot_positions(gpt(Sinusoidal(), max_len=700))
    assert images(figure)[0].shape == (512, 24)
    assert "the first 512 of 700" in words(figure)


def test_stacks_of_a_translator() -> None:
    trained_model = translator()
    assert len(images(plot_positions(trained_model))) == 4
    assert isinstance(trained_model.model, EncoderDecoder)
    for name, stack in (("encoder", trained_model.model.encoder), ("decoder", trained_model.model.decoder)):
        table = stack.position.embed(torch.arange(ROOM)[None])
        assert table is not None
        assert np.array_equal(images(plot_positions(trained_model, stack=name))[0], table[0].detach().numpy())
    equal_stacks = plot_positions(translator(position=Sinusoidal()))
    assert len(images(equal_stacks)) == 2
    assert "encoder and decoder" in words(equal_stacks)
    with pytest.raises(UserError, match=r"--stack decodr: .* did you mean 'decoder'"):
        plot_positions(trained_model, stack="decodr")


def test_maps_are_the_recorded_weights() -> None:
    trained_model = gpt()
    activations = read(trained_model, TEXT).activations
    maps = images(plot_attention(trained_model, TEXT))
    assert len(maps) == 2 * 3
    for number, image in enumerate(maps):
        block, head = divmod(number, 3)
        expected = activations[f"stack.blocks.{block}.self_attention.weights"][0, head].numpy()
        assert np.array_equal(np.ma.getdata(image), expected)
        assert np.array_equal(np.ma.getmaskarray(image), ~np.tri(len(TEXT), dtype=bool))


@pytest.mark.parametrize(("n_encoder", "n_decoder"), [(3, 2), pytest.param(2, 3, marks=pytest.mark.exhaustive)])
def test_three_kinds_of_unequal_depth(n_encoder: int, n_decoder: int) -> None:
    trained_model = translator(n_encoder, n_decoder)
    figure = plot_attention(trained_model, "abc", target="dedede")
    maps = images(figure)
    names = [f"encoder.blocks.{n}.self_attention" for n in range(n_encoder)]
    names += [f"decoder.blocks.{n}.{kind}_attention" for kind in ("self", "cross") for n in range(n_decoder)]
    activations = read(trained_model, "abc", target="dedede").activations
    expected = [head.numpy() for name in names for head in activations[f"{name}.weights"][0]]
    assert [image.shape for image in maps] == [image.shape for image in expected]
    assert {image.shape for image in maps} == {(4, 4), (7, 7), (7, 4)}
    assert all(np.array_equal(np.ma.getdata(image), head) for image, head in zip(maps, expected, strict=True))
    assert "block 2" in words(figure)
    assert len(images(plot_attention(trained_model, "abc", target="de", stack="encoder"))) == 3 * n_encoder
    deep = plot_attention(trained_model, "abc", target="de", layer=2)  # only the deeper side has it
    assert len(images(deep)) == (3 if n_encoder == 3 else 6)


def test_one_block_is_drawn_with_its_tokens() -> None:
    trained_model = gpt()
    figure = plot_attention(trained_model, TEXT, layer=1)
    weights = read(trained_model, TEXT).activations["stack.blocks.1.self_attention.weights"][0].numpy()
    assert all(np.array_equal(np.ma.getdata(a), b) for a, b in zip(images(figure), weights, strict=True))
    axes = figure.axes[0]
    assert axes.get_title() == "block 1, head 0"
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["a", "b", "$", "(space)", "^", "_", "c"]
    assert not any(label.get_parse_math() for label in axes.get_xticklabels())
    wide = plot_attention(gpt(max_len=101), "abcdefghij" * 10, layer=0).axes[0]
    assert [label.get_text() for label in wide.get_xticklabels()][:2] == ["0 a", "3 d"]
    assert len(wide.get_xticklabels()) == 34
    with pytest.raises(UserError, match=r"--layer 2: tiny has no such block; blocks are 0 to 1"):
        plot_attention(trained_model, TEXT, layer=2)
    with pytest.raises(UserError, match=r"blocks are encoder 0 to 2, decoder 0 to 1"):
        plot_attention(translator(), "abc", layer=3)


def test_chosen_heads_are_drawn_with_larger_labels() -> None:
    trained_model = gpt()
    weights = read(trained_model, TEXT).activations["stack.blocks.1.self_attention.weights"][0].numpy()
    figure = plot_attention(trained_model, TEXT, layer=1, heads=[2, 0], scale=2)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["block 1, head 2", "block 1, head 0"]
    assert all(np.array_equal(np.ma.getdata(a), weights[head]) for a, head in zip(images(figure), (2, 0), strict=True))
    plain = plot_attention(trained_model, TEXT, layer=1, heads=[2])
    sizes = [figure.axes[0].get_xticklabels()[0].get_fontsize() for figure in (plain, figure)]
    assert sizes[1] == 2 * sizes[0]
    assert len(images(plot_attention(translator(), "abc", target="de", layer=1, heads=[1]))) == 3
    with pytest.raises(UserError, match=r"--head 3: tiny has no such head; heads are 0 to 2"):
        plot_attention(trained_model, TEXT, layer=1, heads=[0, 3])
    with pytest.raises(UserError, match=r"--head requires --layer"):
        plot_attention(trained_model, TEXT, heads=[0])


def test_a_truncated_text_is_marked() -> None:
    assert "truncated to the context" in words(plot_attention(gpt(), "ab" * ROOM))
    assert "truncated to the context" not in words(plot_attention(gpt(), "ab"))


def test_neighbors_are_the_nearest() -> None:
    trained_model = gpt(tokenizer=Tokenizer.train(BPE(vocab_size=270, prefix_space=True), WORDS))
    tokenizer, table = embeddings(trained_model)
    vectors = table.numpy().astype(np.float64)
    rows = nearest_tokens(table, [3, 260, 7], 5)
    for token, row in zip((3, 260, 7), rows, strict=True):
        cosines = vectors @ vectors[token] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors[token])
        best = [neighbor for neighbor in np.argsort(-cosines) if neighbor != token][:5]
        assert [neighbor for neighbor, _ in row] == best
        assert [cosine for _, cosine in row] == pytest.approx(cosines[best], abs=1e-5)
    figure = plot_neighbors(trained_model, ["cat", "the"])
    ids = [find_token(tokenizer, word) for word in ("cat", "the")]
    (image,) = images(figure)
    assert np.allclose(image, [[cosine for _, cosine in row] for row in nearest_tokens(table, ids, 6)])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["␣cat", "␣the"]


def test_the_map_is_a_principal_component_analysis(seed: int) -> None:
    rows = torch.randn(37, 11) @ torch.randn(11, 11)
    points, shares = components(rows)
    centered = rows.double().numpy() - rows.double().numpy().mean(0)
    _, strengths, directions = np.linalg.svd(centered, full_matrices=False)
    for axis in (0, 1):
        direction = directions[axis] * np.sign(directions[axis][np.abs(directions[axis]).argmax()])
        assert np.allclose(points[:, axis], centered @ direction, atol=1e-4)
        assert shares[axis] == pytest.approx(strengths[axis] ** 2 / (strengths**2).sum())
    trained_model = gpt()
    figure = plot_neighbors(trained_model, ["a"])
    table = embeddings(trained_model)[1]
    offsets = np.asarray(figure.axes[1].collections[0].get_offsets())
    order = list(
        dict.fromkeys([find_token(LETTERS, "a"), *[i for i in range(len(table)) if i not in LETTERS.special_ids]])
    )
    assert np.allclose(offsets, components(table[order])[0], atol=1e-6)


def test_labels_of_the_map_do_not_overlap() -> None:
    trained_model = gpt(tokenizer=Tokenizer.train(BPE(vocab_size=270, prefix_space=True), WORDS))
    figure = plot_neighbors(trained_model)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[1].texts]
    assert len(boxes) > 20
    total_area = sum(box.width * box.height for box in boxes)
    overlap_area = 0.0
    for number, box in enumerate(boxes):
        for other_box in boxes[:number]:
            overlap = type(box).intersection(box, other_box)
            overlap_area += 0.0 if overlap is None else overlap.width * overlap.height
    assert overlap_area < 0.05 * total_area


def test_tokens_are_found_by_their_text() -> None:
    pieces = Tokenizer.train(WordPiece(vocab_size=60), WORDS)
    names = pieces.tokens(range(pieces.vocab_size))
    assert find_token(pieces, "[MASK]") == pieces.mask_id
    assert names[find_token(pieces, "The")] == "the"
    part = next(name for name in names if name.startswith("##"))
    assert names[find_token(pieces, part)] == part
    bpe = Tokenizer.train(BPE(vocab_size=270, prefix_space=True), WORDS)
    assert bpe.tokens([find_token(bpe, "cat")]) == [" cat"]
    with pytest.raises(
        UserError, match=r"--token 'mats': .*|--token 'mats' is not a token of the vocabulary; it is encoded as"
    ):
        find_token(bpe, "mats")
    with pytest.raises(UserError, match=r"--token 'ж' is not a token of the vocabulary"):
        find_token(LETTERS, "ж")
    with pytest.raises(UserError, match=r"--token '' is not a token"):
        find_token(LETTERS, "")
    with pytest.raises(UserError, match=r"shows 1 to 24 tokens, got 30"):
        plot_neighbors(gpt(), ["a"] * 30)


def test_a_vocabulary_of_one_has_no_neighbors() -> None:
    with pytest.raises(NothingToDraw, match="a vocabulary of one token"):
        plot_neighbors(gpt(tokenizer=Tokenizer.train(Characters(alphabet="a", eos=False, pad=False), [])))


def test_distinctive_tokens_differ_from_each_other() -> None:
    trained_model = gpt(tokenizer=Tokenizer.train(BPE(vocab_size=270, prefix_space=True), WORDS))
    tokenizer, table = embeddings(trained_model)
    tokens = choose_distinctive_tokens(tokenizer, table)
    assert 1 <= len(tokens) <= 8
    assert len(set(tokens)) == len(tokens)
    for place, row in enumerate(nearest_tokens(table, tokens, 6)):
        assert not {neighbor for neighbor, _ in row} & set(tokens[place + 1 :])
