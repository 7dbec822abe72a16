"""`AutoTokenizer` opens a converted folder, gives the ids of the original model, and decodes the same text."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from converted import auto_tokenizer
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tercet.checkpoint import Card, convert, save_model
from tercet.encoding.batches import encode_texts
from tercet.models import (
    AnyModel,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
)
from tercet.nn import Sinusoidal
from tercet.tokens import BPE, Characters, Tokenizer, Unigram, WordPiece, Words
from tercet.tokens.gpt2 import from_ranks
from tercet.tokens.sentencepiece import SentencePieceModel, build_unigram

TEXT = "To be, or not to be:\r\nthat is the question 12 times.\n\n\tتجربة عربية 🙂 naïve\0end <eos> [MASK] </s> <unk>"
SPECS: dict[str, Any] = {
    "characters": Characters(pad=True, bos=True, mask=True),
    "bytes": Characters(byte_fallback=True, pad=True, bos=True),
    "words": Words(pad=True, bos=True, mask=True),
    "words after a space": Words(pad=True, bos=True, prefix_space=True),
    "bpe": BPE(vocab_size=300, pad=True, bos=True, mask=True),
    "bpe after a space": BPE(vocab_size=300, pad=True, bos=True, prefix_space=True),
    "unigram": Unigram(pad=True, bos=True, mask=True),
    "unigram after a space": Unigram(pad=True, bos=True, prefix_space=True),
    "wordpiece": WordPiece(vocab_size=120),
}
STACK = StackSpec(d_model=4, n_layers=1, n_heads=1, d_ff=3)
POST = StackSpec(d_model=4, n_layers=1, n_heads=1, d_ff=3, placement="post", position=Sinusoidal())
ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
KNOWN_TEXT = st.text(st.sampled_from(sorted(set(TEXT))), max_size=40)  # only characters that every kind can encode
FAMILIES = ("decoder", "encoder", "masked", "translator")


KINDS = [*SPECS, "gpt2"]
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""  # GPT-2's
RANKS = {token: n for n, token in enumerate([*(bytes([n]) for n in range(256)), b" t", b"be", b" be", b"th", b"tha"])}


@cache
def learnt(kind: str) -> Tokenizer:
    if kind == "gpt2":  # built like GPT-2's own, with fewer ranks
        return Tokenizer(from_ranks(RANKS, PATTERN, {"<|endoftext|>": len(RANKS)}))
    return Tokenizer.train(SPECS[kind], [TEXT] * 3)


def model(family: str, n: int) -> AnyModel:
    if family == "decoder":
        return DecoderOnly(DecoderOnlySpec(vocab_size=n, max_len=9, stack=STACK))
    if family == "translator":
        return EncoderDecoder(EncoderDecoderSpec(vocab_size=n, max_len=9, encoder=POST, decoder=POST))
    head = MaskedHead(transform=True) if family == "masked" else None
    spec = EncoderOnlySpec(
        vocab_size=n, max_len=9, n_segments=2, embedding_norm=True, masked_head=head, stack=POST
    )  # fmt: skip
    return EncoderOnly(spec)


@cache
def load_theirs(kind: str, family: str) -> Any:
    ours = learnt(kind)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "ours", model(family, ours.vocab_size), ours, Card())
        return auto_tokenizer(convert(folder / "ours", folder / "theirs", "hf"))


def read(kind: str, family: str, text: str) -> list[int]:
    """Return the ids that our model of the family reads for a text."""
    ours = learnt(kind)
    if family in ("encoder", "masked"):
        return encode_texts(ours, [text], max_len=1000).rows[0]
    assert ours.eos_id is not None or family == "decoder"
    return [*ours.encode(text), *([ours.eos_id] if family == "translator" else [])]  # type: ignore[list-item]


CASES = [
    pytest.param(
        kind,
        family,
        id=f"{kind}-{family}",
        marks=() if family == "decoder" or kind in ("bpe", "wordpiece") else pytest.mark.exhaustive,
    )
    for kind in KINDS
    for family in FAMILIES
    if kind != "gpt2" or family == "decoder"  # it has no bos token
]


@pytest.mark.parametrize(("kind", "family"), CASES)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_ids_and_text_match(kind: str, family: str, data: st.DataObject) -> None:
    text = data.draw(KNOWN_TEXT if kind == "characters" else st.one_of(ANY_TEXT, KNOWN_TEXT))
    theirs = load_theirs(kind, family)
    assume(not any(name in text for name in theirs.all_special_tokens))  # they read such names as special tokens
    ids = read(kind, family, text)
    assert theirs(text).input_ids == ids
    assert theirs.decode(ids, skip_special_tokens=True) == learnt(kind).decode(ids)


@pytest.mark.parametrize(("kind", "family"), CASES)
def test_training_text_matches(kind: str, family: str) -> None:
    """The text contains "<eos>" and "</s>" as text, except for masked models."""
    theirs, text = load_theirs(kind, family), TEXT if family != "masked" else TEXT.partition("<eos>")[0]
    ids = read(kind, family, text)
    assert theirs(text).input_ids == ids
    assert theirs.decode(ids, skip_special_tokens=True) == learnt(kind).decode(ids)


@pytest.mark.parametrize("kind", [kind for kind, spec in SPECS.items() if getattr(spec, "mask", kind == "wordpiece")])
def test_mask_in_a_text_is_the_mask_token(kind: str) -> None:
    theirs, ours = load_theirs(kind, "masked"), learnt(kind)
    text = f"To be, {ours.mask_token} not to be"
    masked = ours.encode_masked(text).tolist()
    assert ours.mask_id in masked
    assert theirs(text).input_ids == [ours.bos_id, *masked, ours.eos_id]
    assert theirs.mask_token == ours.mask_token
    assert ours.mask_id not in load_theirs(kind, "encoder")(text).input_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_model_inputs_match(family: str) -> None:
    theirs = load_theirs("wordpiece", family)
    batch = theirs(["be", "to be"], padding=True)
    assert ("token_type_ids" in batch) == (family in ("encoder", "masked"))
    assert [theirs.padding_side == "left", theirs.model_max_length] == [family == "decoder", 9]
    assert len(theirs(TEXT, truncation=True).input_ids) == 9
    assert (theirs.pad_token, theirs.bos_token, theirs.eos_token) == ("[PAD]", "[CLS]", "[SEP]")
    pair = theirs("be", "to")
    if family in ("encoder", "masked"):
        assert (theirs.cls_token, theirs.sep_token) == ("[CLS]", "[SEP]")
        assert pair.token_type_ids == [0, 0, 0, 1, 1]
    else:
        assert theirs.cls_token is None


def test_unknown_word_is_shown_the_same() -> None:
    theirs, ours = load_theirs("words", "decoder"), learnt("words")
    ids = ours.encode("To zzz be")
    assert ours.unk_id in ids
    assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids) == "To<unk> be"


PIECES = {"▁to": -1.0, "▁be": -1.5, "▁": -2.0, "to": -2.5, **dict.fromkeys("tobe,</s>", -3.0)}
IDS = {name: number for number, name in enumerate(("</s>", "<unk>", *PIECES, ">>fr<<", "東", "<pad>"))}


@cache
def marians() -> tuple[Tokenizer, Any]:
    """Return one side of a Marian tokenizer, whose bos is the padding, and its converted counterpart."""
    library = build_unigram(
        SentencePieceModel(scores=PIECES), IDS, unknown="<unk>", special=frozenset({"</s>", "<pad>"})
    )
    ours = Tokenizer(library).with_ids(bos_id=IDS["<pad>"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "ours", model("translator", ours.vocab_size), ours, Card())
        return ours, auto_tokenizer(convert(folder / "ours", folder / "theirs", "hf"))


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(text=st.text(st.sampled_from("tobe,</s> \n東!"), max_size=20))
def test_marian_pieces_match(text: str) -> None:
    ours, theirs = marians()
    for line in (text, f">>fr<< {text}</s>"):
        ids = ours.encode(line)
        assert theirs(line).input_ids == [*ids, 0]
        assert theirs.decode([*ids, 0], skip_special_tokens=True) == ours.decode(ids)
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.bos_token_id) == (0, len(IDS) - 1, len(IDS) - 1)


def test_source_with_bos_keeps_bos() -> None:
    from tercet.checkpoint.foreign.auto_tokenizer import tokenizer_json

    ours = learnt("words after a space")
    assert ours.bos_id is not None
    ours = ours.with_opening([ours.bos_id])
    library = Tokenizer.from_json(tokenizer_json(ours, model("translator", ours.vocab_size).spec))._library  # pyright: ignore[reportPrivateUsage]
    text = "To be, or not to be"
    assert library.encode(text).ids == ours.frame(ours.encode(text), max_len=99)
    assert library.encode(text).ids[0] == ours.bos_id
