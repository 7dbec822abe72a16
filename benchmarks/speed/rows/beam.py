"""Beam search over Multi30k's test set: 5 beams, batches of 32 sentences, a trained model; from text to text.

With random weights an answer has the maximum length, so a trained model is required: `--translator`. Each contender
reports the quality of its answers (BLEU), because speed is easy to gain at the expense of quality.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.speed.contender import Contender, Settings
from benchmarks.speed.peers import joeynmt
from benchmarks.speed.peers.ctranslate2 import CTranslate2Process
from benchmarks.speed.peers.hugging import hugging
from benchmarks.speed.row import Asked, Lineup, Row
from torch import Tensor, nn

from tercet.checkpoint import TrainedModel, load_model
from tercet.checkpoint.foreign.ctranslate2_folder import ctranslate2_writer
from tercet.checkpoint.foreign.ctranslate2_vocabulary import Vocabulary
from tercet.config import UserError
from tercet.data import PairsSpec, read_pairs
from tercet.evaluate import bleu
from tercet.generation import Beam, translate
from tercet.models import EncoderDecoder
from tercet.nn import quantize

SIZE, AT_ONCE = 5, 32
CHECKED = 5  # sentences whose likelihoods are compared with Tercet's
SENTENCES = {"full": 320, "quick": 96, "tiny": 5}
DEFAULT = Path("runs/bench-translator")
HOW = (
    "no trained translator; pass --translator RUN, or train one with `tercet train multi30k-de-en --out "
    "runs/bench-translator --set model.preset=transformer-tiny --set training.warmup_steps=60`"
)


class Searching(Contender):
    """A contender that translates sentences; `written` are those of the last unit of work."""

    def __init__(self, name: str, side: Any, settings: Settings, *, given: "Given", folder: Path) -> None:
        super().__init__(name, side, settings)
        self._given, self._folder = given, folder
        self.written: list[str] = []

    def run(self, n: int) -> float:
        for _ in range(n):
            self.written = self.search()
        return n * len(self._given.texts)

    def search(self) -> list[str]:
        raise NotImplementedError

    def quality(self) -> str:
        return f"BLEU {bleu(self.written, self._given.references):.2f}"

    def batches(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of each source, and batches of sentences of similar length, which favors other libraries."""
        given = self._given
        ids = [[*given.trained_model.source_tokenizer.encode(text), given.eos] for text in given.texts]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        return ids, [order[start : start + AT_ONCE] for start in range(0, len(order), AT_ONCE)]

    @torch.no_grad()
    def in_batches(self, best: Callable[[Tensor], list[list[int]]]) -> list[str]:
        """Return the texts of the answers of `best` to padded batches of ids."""
        ids, batches = self.batches()
        given, written = self._given, [""] * len(ids)
        for some in batches:
            rows = [torch.tensor(ids[i]) for i in some]
            source = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=given.pad)
            for i, row in zip(some, best(source), strict=True):
                written[i] = given.trained_model.tokenizer.decode(
                    row[: row.index(given.eos)] if given.eos in row else row
                )
        return written


class Given:
    """The model, and the sentences to translate."""

    def __init__(self, trained_model: TrainedModel, count: int) -> None:
        assert isinstance(trained_model.model, EncoderDecoder)
        data = trained_model.card.recipe["data"]
        spec = PairsSpec(
            source=data["source"], source_language=data["source_language"], target_language=data["target_language"]
        )
        pairs = read_pairs(spec, "test")[:count]
        self.trained_model, self.model = trained_model, trained_model.model
        self.texts = [source for source, _ in pairs]
        self.references = [target for _, target in pairs]
        eos, bos = trained_model.tokenizer.eos_id, trained_model.tokenizer.bos_id
        assert eos is not None
        assert bos is not None
        self.eos, self.bos, self.pad = eos, bos, trained_model.tokenizer.pad_id or 0

    def checked(self) -> list[tuple[list[int], list[int]]]:
        """Return the ids of the first sources and references."""
        return [
            (
                [*self.trained_model.source_tokenizer.encode(text), self.eos],
                [*self.trained_model.tokenizer.encode(told), self.eos],
            )
            for text, told in zip(self.texts[:CHECKED], self.references[:CHECKED], strict=True)
        ]


def likelihoods(model: Any, given: Given, *, theirs: bool) -> Tensor:
    """Return ln p of each token of the first references, including the end: equal for all contenders."""
    found: list[Tensor] = []
    for source, target in given.checked():
        read, written = torch.tensor([source]), torch.tensor([[given.bos, *target[:-1]]])
        logits = model(input_ids=read, decoder_input_ids=written).logits if theirs else model(read, written)
        found.append(logits[0].log_softmax(-1).gather(-1, torch.tensor(target)[:, None])[:, 0])
    return torch.cat(found)


class Ours(Searching):
    def setup(self) -> None:
        self.model = copy.deepcopy(self._given.model)
        if self.settings.precision != "fp32":
            quantize(self.model, self.settings.precision)

    @torch.no_grad()
    def answer(self) -> Tensor | None:
        fp32 = self.settings.precision == "fp32"
        return likelihoods(self.model, self._given, theirs=False) if fp32 else None

    def search(self) -> list[str]:
        given = self._given
        found = translate(
            self.model, given.trained_model.tokenizer, given.texts, Beam(size=SIZE),
            source_tokenizer=given.trained_model.source_tokenizer,
        )  # fmt: skip
        return [one[0].text for one in found]


class Hugging(Searching):
    def setup(self) -> None:
        self.model: Any = hugging(self._given.model, self.settings.attention).eval()

    @torch.no_grad()
    def answer(self) -> Tensor:
        return likelihoods(self.model, self._given, theirs=True)

    def search(self) -> list[str]:
        return self.in_batches(self._best)

    def _best(self, source: Tensor) -> list[list[int]]:
        given = self._given
        longest = min(2 * source.shape[1] + 10, given.model.max_len - 1)
        ids = self.model.generate(
            source, attention_mask=(source != given.pad).long(), num_beams=SIZE, length_penalty=1.0,
            max_new_tokens=longest, do_sample=False, early_stopping=True, decoder_start_token_id=given.bos,
            eos_token_id=given.eos, bad_words_ids=[[given.pad], [given.bos]],
        )  # fmt: skip
        return [row[1:] for row in ids.tolist()]

    def close(self) -> None:
        del self.model


class JoeyNMT(Searching):
    """JoeyNMT, for a translator of the original architecture, which is the only one whose weights it can hold."""

    def __init__(self, *args: Any, installation: Path, **more: Any) -> None:
        super().__init__(*args, **more)
        self._installation = installation

    def setup(self) -> None:
        self.model: Any = joeynmt.joeynmt(self._installation, self._given.model, smoothing=0.0).eval()
        joeynmt.copy_weights(self._given.model, self.model)

    def search(self) -> list[str]:
        return self.in_batches(
            lambda source: joeynmt.search(self.model, source, size=SIZE, longest=2 * source.shape[1] + 10)
        )

    def close(self) -> None:
        del self.model


class CTranslate2(Searching):
    def setup(self) -> None:
        there = self._folder / "ctranslate2"
        if not (there / "model.bin").is_file():
            there.mkdir(parents=True, exist_ok=True)
            ctranslate2_writer(self._given.trained_model)(there)
        self.model = CTranslate2Process("Translator", there, self.settings.precision)
        self._read = Vocabulary.of(self._given.trained_model.source_tokenizer).tokens
        self._write = Vocabulary.of(self._given.trained_model.tokenizer).tokens
        self._ids = {token: n for n, token in enumerate(self._write)}

    def answer(self) -> Tensor | None:
        if self.settings.precision != "fp32":
            return None
        pairs = self._given.checked()
        sources = [[self._read[n] for n in source] for source, _ in pairs]
        targets = [[self._write[n] for n in target[:-1]] for _, target in pairs]
        return torch.tensor(self.model.ask(_scores, sources, targets))

    def search(self) -> list[str]:
        ids, batches = self.batches()
        written = [""] * len(ids)
        for some in batches:
            longest = min(2 * max(len(ids[i]) for i in some) + 10, self._given.model.max_len - 1)
            found = self.model.ask(_translated, [[self._read[n] for n in ids[i]] for i in some], longest)
            for i, best in zip(some, found, strict=True):
                written[i] = self._given.trained_model.tokenizer.decode([self._ids[token] for token in best])
        return written

    def peak_memory(self) -> int:
        return self.model.peak_memory()

    def close(self) -> None:
        self.model.close()


def _scores(model: Any, sources: list[list[str]], targets: list[list[str]]) -> list[float]:
    return [number for one in model.score_batch(sources, targets) for number in one.log_probs]


def _translated(model: Any, sources: list[list[str]], longest: int) -> list[list[str]]:
    found = model.translate_batch(
        sources, beam_size=SIZE, length_penalty=1.0, max_decoding_length=longest, max_batch_size=AT_ONCE
    )
    return [one.hypotheses[0] for one in found]


def lineup(asked: Asked) -> Lineup:
    found = Lineup()
    folder = asked.translator or DEFAULT
    if not folder.exists():
        found.leave_out("all", HOW)
        return found
    try:
        given = Given(load_model(folder), SENTENCES[asked.scale])
    except (UserError, AssertionError, KeyError) as error:
        found.leave_out("all", f"{folder}: {error or 'no translator'}")
        return found

    def contender(kind: Any, name: str, side: Any, settings: Settings, **more: Any) -> Contender:
        return kind(name, side, settings, given=given, folder=asked.folder / f"beam-{asked.scale}", **more)

    def with_transformers() -> list[Contender]:
        import transformers  # noqa: F401

        return [
            contender(Hugging, "transformers", "readme", Settings(attention="sdpa")),
            contender(Hugging, "transformers, eager, oneDNN", "peer", Settings(attention="eager", matmul="medium")),
        ]

    def with_ctranslate2() -> list[Contender]:
        import ctranslate2  # noqa: F401

        return [
            contender(CTranslate2, f"CTranslate2, {precision}", "peer", Settings(precision=precision))
            for precision in ("fp32", "int8")
        ]

    found.add(contender(Ours, "tercet", "ours", Settings(attention="own", keeps_memory=True)))
    found.add(contender(Ours, "tercet, int8", "ours", Settings(attention="own", keeps_memory=True, precision="int8")))
    found.try_to("transformers", with_transformers)
    found.try_to("CTranslate2", with_ctranslate2)
    if asked.joeynmt is None:
        found.leave_out("JoeyNMT", joeynmt.MISSING)
    else:
        plain = Settings(attention="eager")
        found.add(contender(JoeyNMT, "JoeyNMT", "peer", plain, installation=asked.joeynmt))
    found.notes.append(f"{len(given.texts)} sentences of the test set, model {folder}")
    return found


BEAM = Row(
    name="beam",
    title="Beam search, Multi30k's test set, 5 beams, 32 sentences at once",
    lineup=lineup,
    unit="sentences",
)
