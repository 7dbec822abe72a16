"""A biologist with DNA in FASTA files: look, train on masked letters, fine-tune a classifier of families, evaluate.

Each sequence of a family contains its two motifs, in which one letter in ten has mutated, between random letters whose
composition is that of its species. Repeats are in lower case, and some letters are unknown. The test sequences are of
species that are in no other file.
"""

import random
from pathlib import Path

from newcomers.desk import Desk

FAMILIES = {
    "kinase": ("GGTACCTTGAGC", "CATGGCAATTCG"),
    "ligase": ("TTGACGGCATAC", "AGCCTATTGCGA"),
    "protease": ("CCATAGTCAGGT", "GTTCAAGCGTAC"),
    "transporter": ("ATCGGATTCCAG", "TGCATCCGATGA"),
}
LETTERS = "ACGT"
PROTEIN = "ACDEFGHIKLMNPQRSTVWY"


def sequence(draw: random.Random, family: str, species: int) -> str:
    """Return a sequence of 80 to 120 letters: two mutated motifs between the letters of a species."""
    gc = 0.35 + 0.04 * (species % 8)
    weights = ((1 - gc) / 2, gc / 2, gc / 2, (1 - gc) / 2)
    pieces = ["".join(draw.choices(LETTERS, weights, k=draw.randint(18, 32))) for _ in range(3)]
    motifs = [
        "".join(draw.choice(LETTERS) if draw.random() < 0.1 else letter for letter in motif)
        for motif in FAMILIES[family]
    ]
    text = pieces[0] + motifs[0] + pieces[1] + motifs[1] + pieces[2]
    start = draw.randrange(len(text) - 10)
    if draw.random() < 0.3:
        text = text[:start] + text[start : start + 10].lower() + text[start + 10 :]
    if draw.random() < 0.1:
        text = f"{text[:start]}N{text[start + 1 :]}"
    return text


def records(draw: random.Random, count: int, species: range) -> list[tuple[str, int, str]]:
    rows = []
    for _ in range(count):
        family, kind = draw.choice(list(FAMILIES)), draw.choice(species)
        rows.append((family, kind, sequence(draw, family, kind)))
    return rows


def wrap(text: str) -> str:
    return "\n".join(text[start : start + 60] for start in range(0, len(text), 60))


def write_files(folder: Path) -> None:
    draw = random.Random(3)
    genome = records(draw, 3000, range(16))
    (folder / "genome.fa").write_text("".join(f">read{n}\n{wrap(text)}\n" for n, (_, _, text) in enumerate(genome)))
    for name, count, species in (("families", 1600, range(16)), ("test", 400, range(16, 20))):
        rows = enumerate(records(draw, count, species))
        lines = (f">{name}{n} family={family} species=s{kind}\n{wrap(text)}\n" for n, (family, kind, text) in rows)
        (folder / f"{name}.fa").write_text("".join(lines))
    proteins = ("".join(draw.choices(PROTEIN, k=draw.randint(50, 90))) for _ in range(200))
    (folder / "proteins.faa").write_text("".join(f">p{n}\n{wrap(text)}\n" for n, text in enumerate(proteins)))


def work(desk: Desk) -> None:
    desk.type("pip install tercet")
    look = desk.type("tercet data look genome.fa")
    proteins = desk.type("tercet data look proteins.faa")
    families = desk.type("tercet data look families.fa --label-field family")
    with desk.check("the kinds of sequences and the labels are reported"):
        assert "DNA" in look
        assert "GC" in look
        assert "protein" in proteins
        assert all(family in families for family in FAMILIES)
    desk.type("""
        tercet train bert-shakespeare --data genome.fa --set data.sequence_case=upper \\
            --set data.sequence_ambiguous=unknown --set task.masking.unit=tokens --set model.max_len=128 \\
            --set 'data.tokenizer={kind: characters, bos: true, pad: true, mask: true}' \\
            --set training.max_steps=700 --out runs/letters
        tercet evaluate runs/letters --json > masked.json
        tercet fill runs/letters "ACGTACGT[MASK]ACGT" --top 3
    """)
    with desk.check("masked letters are predicted better than by their frequencies", trained=True):
        assert not desk.read("masked.json")["verdicts"]
    reading = "--set data.group_field=species --set data.sequence_case=upper --set data.sequence_ambiguous=unknown"
    desk.type(f"""
        tercet train finetune-classify --data families.fa --label-field family --pretrained runs/letters {reading} \\
            --set training.max_epochs=6 --set training.optimizer.lr=5e-4 --out runs/families
        tercet evaluate runs/families
        tercet evaluate runs/families --data test.fa --json > scores.json
        tercet errors runs/families --data test.fa --html errors.html
        tercet classify runs/families --input test.fa --json > predictions.jsonl
        tercet plot runs/families calibration
        tercet train families.fa --label-field family {reading} --out runs/scratch
        tercet evaluate runs/families --compare runs/scratch --data test.fa
    """)
    with desk.check("families of new species are recognized, with intervals", trained=True):
        scores = desk.read("scores.json")
        low, high = scores["intervals"]["accuracy"]
        assert scores["count"] == 400
        assert scores["majority"] + 0.2 < low <= scores["accuracy"] <= high
        assert not scores["verdicts"]
    with desk.check("each record has a prediction, with its name, and the errors are a page"):
        predictions = desk.read("predictions.jsonl")
        assert [row["id"] for row in predictions] == [f"test{n}" for n in range(400)]
        assert "<html" in (desk.folder / "errors.html").read_text(encoding="utf-8")
