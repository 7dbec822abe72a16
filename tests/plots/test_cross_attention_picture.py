"""Cross-attention of a translation: rows, words and image files."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tercet.config import UserError
from tercet.generation import Beam, Translation, translate
from tercet.inspect.cross_attention import CrossAttentionMap, read_cross_attention
from tercet.models import EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import Rotary
from tercet.plots.cross_attention import draw_cross_attention
from tercet.plots.picture_file import check_picture
from tercet.tokens import Characters, Tokenizer

TOKENIZER = Tokenizer.train(Characters(alphabet="abcdefghij $_^", pad=True, bos=True, eos=True), [])


def small(*, n_layers: int = 3, seed: int = 0, max_len: int = 13) -> EncoderDecoder:
    stack = StackSpec(d_model=24, n_layers=n_layers, n_heads=3, position=Rotary())
    spec = EncoderDecoderSpec(encoder=stack, decoder=stack, vocab_size=TOKENIZER.vocab_size, max_len=max_len)
    model = EncoderDecoder(spec, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 4
    return model.eval()


def translate_text(model: EncoderDecoder, text: str, beam: int = 2) -> Translation:
    return translate(model, TOKENIZER, [text], Beam(size=beam, max_ratio=0, max_extra=5))[0][0]


@pytest.mark.parametrize("beam", [1, 3])
def test_every_token_has_a_row_that_sums_to_one(beam: int) -> None:
    model = small()
    translation = translate_text(model, "ab cde", beam)
    attention = read_cross_attention([model], TOKENIZER, translation)
    assert attention.source == (*"ab cde", "(end)")
    assert len(attention.target) == len(translation.ids)
    assert attention.weights.shape == (3, len(translation.ids), 7)
    assert torch.allclose(attention.weights.sum(-1), torch.ones(3, len(translation.ids)), atol=1e-5)
    assert attention.layer == 1  # the last but one


def test_the_end_is_a_row_only_if_it_was_generated() -> None:
    model = small()
    translation = translate_text(model, "abc")
    shapes = {
        finish: read_cross_attention([model], TOKENIZER, replace(translation, finish=finish)).target[-1] == "(end)"
        for finish in ("eos", "length")
    }
    assert shapes == {"eos": True, "length": False}


def test_a_prefix_is_part_of_the_picture() -> None:
    model = small()
    translation = translate(model, TOKENIZER, ["abc"], Beam(max_ratio=0, max_extra=4), prefixes=["de"])[0][0]
    attention = read_cross_attention([model], TOKENIZER, translation, prefix="de")
    assert attention.target[:2] == ("d", "e")
    assert len(attention.target) == 2 + len(translation.ids)


def test_a_truncated_source_is_shown_as_read() -> None:
    model = small(max_len=7)
    assert read_cross_attention([model], TOKENIZER, translate_text(model, "abcdefghij")).source == (*"abcdef", "(end)")


@pytest.mark.slow
def test_an_ensemble_shows_the_heads_of_all_models() -> None:
    models = [small(seed=0), small(seed=1)]
    translation = translate_text(models[0], "abc")
    attention = read_cross_attention(models, TOKENIZER, translation)
    separate_weights = [read_cross_attention([model], TOKENIZER, translation).weights for model in models]
    assert torch.allclose(attention.weights, torch.cat(separate_weights), atol=1e-6)
    with pytest.raises(UserError, match=r"equal numbers of decoder layers, got \[2, 3\]"):
        read_cross_attention([small(), small(n_layers=2)], TOKENIZER, translation)


def test_an_empty_line_has_no_attention() -> None:
    attention = read_cross_attention([small()], TOKENIZER, translate_text(small(), ""))
    assert (attention.target, attention.alignment, attention.pharaoh) == ((), [], "")


def diagonal(source: tuple[str, ...], target: tuple[str, ...], source_positions: list[int]) -> CrossAttentionMap:
    weights = torch.full((2, len(target), len(source)), 0.1 / len(source))
    for row, column in enumerate(source_positions):
        weights[:, row, column] += 0.9
    return CrossAttentionMap(source=source, target=target, has_end=True, weights=weights, layer=0)


def test_words_are_aligned_not_tokens() -> None:
    source = ("the", " ho", "use", " stands", "(end)")
    target = ("das", " steht", " ha", "us", "(end)")
    attention = diagonal(source, target, [0, 3, 1, 2, 4])
    assert attention.words == ([range(1), range(1, 3), range(3, 4)], [range(1), range(1, 2), range(2, 4)])
    assert attention.pharaoh == "0-0 1-2 2-1"
    assert diagonal(source, target, [0, 1, 1, 2, 4]).pharaoh == "0-0 1-1 1-2"


def test_opening_tokens_of_a_source_are_not_words() -> None:
    source, target = ("<bos>", "the", " house", "(end)"), ("das", " haus", "(end)")
    attention = replace(diagonal(source, target, [0, 2, 3]), opening=1)
    assert attention.words[0] == [range(1, 2), range(2, 3)]
    assert attention.pharaoh == "0-0 1-1"  # the first word, though <bos> has the largest weight


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_image_files_are_reproducible(suffix: str, start: bytes, tmp_path: Path) -> None:
    odd = diagonal(("$a_", " b^$", "\U0001f989", " ", "(end)"), ("漢", " $$", "\\frac", "(end)"), [0, 1, 2, 3])
    for name in ("one", "two"):
        draw_cross_attention([odd, odd], tmp_path / f"{name}{suffix}")
    first_image, second_image = (tmp_path / f"{name}{suffix}" for name in ("one", "two"))
    assert first_image.read_bytes() == second_image.read_bytes()  # files contain no time
    assert first_image.read_bytes().startswith(start)


def test_images_contain_their_labels(tmp_path: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):
        draw_cross_attention(
            [diagonal(("the", " house", "(end)"), ("das", " haus", "(end)"), [0, 1, 2])], tmp_path / "a.svg"
        )
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for words in (
        "source tokens",
        "target tokens",
        "attention weight",
        "decoder block 0",
        ">house<",
        ">haus<",
        "(end)",
    ):
        assert words in text


@pytest.mark.slow
def test_invalid_arguments_are_rejected(tmp_path: Path) -> None:
    attention = diagonal(("a", "(end)"), ("b", "(end)"), [0, 1])
    with pytest.raises(UserError, match=r"draws 1 to 8 sentences, got 9; pass 1 to 8"):
        draw_cross_attention([attention] * 9, tmp_path / "a.png")
    with pytest.raises(UserError, match=r"draws 1 to 8 sentences, got 0"):
        draw_cross_attention([], tmp_path / "a.png")
    with pytest.raises(UserError, match=r"has nothing to draw: all translations are empty"):
        draw_cross_attention([replace(attention, target=())], tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a picture's name ends in .png, .svg, .pdf"):
        check_picture(tmp_path / "a.gif", "--attention")
    with pytest.raises(UserError, match=r"no such folder: .*none; create it first"):
        check_picture(tmp_path / "none" / "a.png", "--attention")
    (tmp_path / "a.png").mkdir()
    with pytest.raises(UserError, match=r"a\.png is a folder; pass a file name, such as"):
        draw_cross_attention([attention], tmp_path / "a.png")
