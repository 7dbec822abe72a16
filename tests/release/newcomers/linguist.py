"""A linguist with sentence pairs of a small language: look, train a translator, scores, errors, a file, a server.

The language is invented: the verb is last, cases and numbers are suffixes whose vowel agrees with that of the noun, and
the person and the tense are suffixes of the verb. All test sentences differ from those of the training.
"""

import csv
import random
from pathlib import Path

from newcomers.desk import Desk

NOUNS = {
    "man": "tolan", "woman": "merid", "child": "kesi", "dog": "bakur", "horse": "silem", "bird": "vorun",
    "fish": "nakta", "tree": "dumas", "house": "pelin", "river": "hatak", "mountain": "gorum", "stone": "sefi",
    "bread": "ruman", "song": "eling", "boat": "kumat", "star": "irell", "road": "tavor", "fire": "zemi",
    "king": "ofran", "teacher": "belit", "letter": "morak", "knife": "siner", "garden": "hulat", "window": "perem",
    "friend": "dakun",
}  # fmt: skip
VERBS = {
    ("sees", "saw"): "gol", ("buys", "bought"): "tem", ("carries", "carried"): "rud", ("finds", "found"): "nis",
    ("loves", "loved"): "vak", ("sells", "sold"): "hem", ("paints", "painted"): "zor", ("hears", "heard"): "lin",
    ("breaks", "broke"): "kub", ("washes", "washed"): "feg",
}  # fmt: skip
ADJECTIVES = {"old": "karu", "small": "miti", "red": "sove", "good": "alem", "black": "norg", "tall": "ipas"}
PLACES = {"in the house": "pelinde", "near the river": "hatakra", "on the mountain": "gorumda", "at night": "umbre"}
PLURALS = {"man": "men", "woman": "women", "child": "children", "fish": "fish", "knife": "knives"}


def harmonic(word: str, back: str, front: str) -> str:
    """Return a word with the suffix that fits its last vowel."""
    vowel = next(letter for letter in reversed(word) if letter in "aeiou")
    return word + (back if vowel in "aou" else front)


def noun_phrase(draw: random.Random, *, is_object: bool) -> tuple[str, str]:
    """Return a noun phrase of the small language and its English translation."""
    noun, is_plural = draw.choice(list(NOUNS)), draw.random() < 0.4
    word = harmonic(NOUNS[noun], "lar", "ler") if is_plural else NOUNS[noun]
    word = harmonic(word, "u", "i") if is_object else word
    english = PLURALS.get(noun, f"{noun}s") if is_plural else noun
    if draw.random() < 0.5:
        adjective = draw.choice(list(ADJECTIVES))
        word, english = f"{ADJECTIVES[adjective]} {word}", f"{adjective} {english}"
    return word, f"the {english}"


def sentence(draw: random.Random) -> tuple[str, str]:
    """Return a sentence of the small language and its English translation."""
    subject, english_subject = noun_phrase(draw, is_object=False)
    thing, english_thing = noun_phrase(draw, is_object=True)
    (present, past), stem = draw.choice(list(VERBS.items()))
    is_past, is_plural = draw.random() < 0.5, "lar" in subject or "ler" in subject
    verb = harmonic(stem, "dan" if is_past else "ar", "den" if is_past else "er") + ("t" if is_plural else "")
    form = past if is_past else present
    if is_plural and not is_past:
        form = {"carries": "carry", "washes": "wash"}.get(present, present.removesuffix("s"))
    words, english = [subject, thing, verb], f"{english_subject} {form} {english_thing}"
    if draw.random() < 0.4:
        place = draw.choice(list(PLACES))
        words, english = [PLACES[place], *words], f"{english} {place}"
    return f"{' '.join(words)}.".capitalize(), f"{english}.".capitalize()


def write_files(folder: Path) -> None:
    draw = random.Random(7)
    pairs = list(dict(sentence(draw) for _ in range(5000)).items())
    with (folder / "pairs.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("tolan", "english"), *pairs[:4000]])
    for name, side in (("test.tolan", 0), ("test.english", 1)):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs[4000:4200]), encoding="utf-8")
    (folder / "sentences.txt").write_text("".join(f"{pair[0]}\n" for pair in pairs[4200:4220]), encoding="utf-8")


def work(desk: Desk) -> None:
    desk.type("""
        pip install 'tercet[serve,export]'
        tercet data look pairs.csv --source-field tolan --target-field english
        tercet train pairs.csv --source-field tolan --target-field english --out runs/pairs
        tercet evaluate runs/pairs --source test.tolan --target test.english --output test.out --json > scores.json
        tercet evaluate runs/pairs
        tercet errors runs/pairs --source test.tolan --target test.english --html errors.html --json > errors.json
        tercet translate runs/pairs --input sentences.txt > translations.txt
        tercet plot runs/pairs attention --prompt "Tolan kesii golar."
        tercet train runs/pairs --more 100
        tercet convert runs/pairs pairs-ct2 --to ctranslate2
    """)
    with desk.check("translations of new sentences are good, with intervals", trained=True):
        scores = desk.read("scores.json")
        for name, least in (("bleu", 50), ("chrf", 60)):
            low, high = scores[f"{name}_interval"]
            assert least < low, (name, low)
            assert low - 1e-6 <= scores[name] <= high + 1e-6, scores  # all bounds are 100 if each translation is right
    with desk.check("each sentence has a translation"):
        assert len((desk.folder / "test.out").read_text(encoding="utf-8").splitlines()) == 200
        assert len((desk.folder / "translations.txt").read_text(encoding="utf-8").splitlines()) == 20
    with desk.check("the errors have word alignments and a page"):
        worst = desk.read("errors.json")["worst"]
        assert len(worst) == 10
        assert all(pair["words"] and pair["alignment"] for pair in worst)
        assert "<html" in (desk.folder / "errors.html").read_text(encoding="utf-8")
    with desk.check("the model for CTranslate2 exists"):
        assert (desk.folder / "pairs-ct2" / "model.bin").stat().st_size > 10_000
    answers = desk.ask(
        "tercet serve runs/pairs", {"/translate": {"text": ["Tolan kesii golar."], "beam": 5}, "/": None}
    )
    with desk.check("the server translates and has a page"):
        assert answers["/translate"]
        assert "<html" in answers["/"]
