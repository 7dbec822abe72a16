"""Reverse complements of rows: an involution that equals the definition letter by letter, and errors in one line."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data.rows.strands import Strands, choose_strands
from tercet.data.sources.sequence_letters import COMPLEMENTS
from tercet.tokens import Characters, KMers, Tokenizer

IUPAC = "ACGTRYSWKMBDHVN"
TOKENIZER = Tokenizer.train(Characters(alphabet=f"{IUPAC}{IUPAC.lower()}-", pad=True, bos=True, mask=True), [])
STRANDS = Strands(TOKENIZER)
SEQUENCES = st.text(f"{IUPAC}{IUPAC.lower()}-", max_size=12)


def make_rows(texts: list[str], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of bos, a text, eos and padding with the id of a letter, and the mask of real tokens."""
    letter = TOKENIZER.encode("A")[0]
    rows = [[TOKENIZER.bos_id, *TOKENIZER.encode(text), TOKENIZER.eos_id] for text in texts]
    tokens = np.array([[*row, *[letter] * (width - len(row))] for row in rows], dtype=np.int64)
    return tokens, np.arange(width) < np.array([len(row) for row in rows])[:, None]


def complement(text: str) -> str:
    """Return the reverse complement, letter by letter."""
    table = {"A": "T", "C": "G", "G": "C", "T": "A", "R": "Y", "Y": "R", "K": "M", "M": "K", "B": "V", "V": "B",
             "D": "H", "H": "D"}  # fmt: skip
    letters = [table.get(letter.upper(), letter.upper()) for letter in reversed(text)]
    return "".join(
        letter if old.isupper() else letter.lower() for old, letter in zip(reversed(text), letters, strict=True)
    )


@given(st.lists(st.tuples(SEQUENCES, st.booleans()), min_size=1, max_size=5))
def test_reverse_complement_of_each_chosen_row(items: list[tuple[str, bool]]) -> None:
    tokens, mask = make_rows([text for text, _ in items], 16)
    chosen = np.array([is_chosen for _, is_chosen in items])
    result = STRANDS.reverse(tokens, chosen, mask=mask)
    expected, _ = make_rows([complement(text) if is_chosen else text for text, is_chosen in items], 16)
    assert (result == expected).all()
    assert (STRANDS.reverse(result, chosen, mask=mask) == tokens).all()  # an involution


@given(st.lists(SEQUENCES, min_size=1, max_size=5), st.booleans())
def test_documents_of_a_packed_row_stay_in_place(texts: list[str], has_eos: bool) -> None:
    end = [TOKENIZER.eos_id] if has_eos else []
    parts, expected = ([[*TOKENIZER.encode(change(text)), *end] for text in texts] for change in (str, complement))
    documents = np.array([[number for number, part in enumerate(parts) for _ in part]])
    tokens = np.array([list(chain(*parts))], dtype=np.int64)
    chosen = np.array([True])
    assert STRANDS.reverse(tokens, chosen, documents=documents).tolist() == [list(chain(*expected))]
    if has_eos:
        assert STRANDS.reverse(tokens, chosen).tolist() == [list(chain(*expected))]


def test_complements_of_rna() -> None:
    strands = Strands(tokenizer := Tokenizer.train(Characters(alphabet="ACGUN"), []))
    tokens = np.array([tokenizer.encode("AACGUN")], dtype=np.int64)
    assert tokenizer.decode(strands.reverse(tokens, np.array([True]))[0].tolist()) == "NACGUU"
    assert {COMPLEMENTS[COMPLEMENTS[letter]] for letter in IUPAC} == set(IUPAC)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Characters(alphabet="ACGTE"), "requires DNA or RNA, but the vocabulary has 'E'"),
        (Characters(alphabet="ACGT\n"), r"has '\\n'"),
        (Characters(alphabet="ACGTU"), "both T and U"),
        (Characters(alphabet="ACGTR"), "has 'R', but not its complement 'Y'; set data.sequence_ambiguous to unknown"),
        (Characters(alphabet="ACGTa"), "has 'a', but not its complement 't'"),
        (Characters(alphabet="ACGT", byte_fallback=True), "requires DNA or RNA"),
        (KMers(k=2), "one token per nucleotide, not the tokenizer kmers"),
    ],
)
def test_other_alphabets_are_rejected_in_one_line(spec: Characters | KMers, words: str) -> None:
    with pytest.raises(UserError, match=words) as error_info:
        Strands(Tokenizer.train(spec, ["ACGTACGT"]))
    assert "\n" not in str(error_info.value)


def test_strands_depend_on_seed_epoch_and_row_only() -> None:
    numbers, epochs = np.arange(1000), np.zeros(1000, dtype=np.int64)
    chosen = choose_strands(numbers, epochs, n_rows=1000, seed=1)
    assert 400 < chosen.sum() < 600
    order = np.random.default_rng(0).permutation(1000)
    assert (choose_strands(order, epochs, n_rows=1000, seed=1) == chosen[order]).all()
    mixed = choose_strands(np.tile(numbers, 2), np.repeat([0, 1], 1000), n_rows=1000, seed=1)
    assert (mixed[:1000] == chosen).all()
    for other in (mixed[1000:], choose_strands(numbers, epochs, n_rows=1000, seed=2)):
        assert 400 < (other != chosen).sum() < 600
