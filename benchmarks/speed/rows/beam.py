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
from benchmarks.speed.row import Lineup, Options, Row
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

SIZE, BATCH_SIZE = 5, 32
N_CHECKED = 5  # sentences whose likelihoods are compared with Tercet's
SENTENCES = {"full": 320, "quick": 96, "tiny": 5}
DEFAULT = Path("runs/bench-translator")
HOW = (
    "no trained translator; pass --translator RUN, or train one with `tercet train multi30k-de-en --out "
    "runs/bench-translator --set model.preset=transformer-tiny --set training.warmup_steps=60`"
)


class Searching(Contender):
    """A contender that translates sentences; `translations` are those of the last unit of work."""

    def __init__(self, name: str, side: Any, settings: Settings, *, workload: "Workload", folder: Path) -> None:
        super().__init__(name, side, settings)
        self._workload, self._folder = workload, folder
        self.translations: list[str] = []

    def run(self, n: int) -> float:
        for _ in range(n):
            self.translations = self.search()
        return n * len(self._workload.texts)

    def search(self) -> list[str]:
        raise NotImplementedError

    def quality(self) -> str:
        return f"BLEU {bleu(self.translations, self._workload.references):.2f}"

    def batches(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of each source, and batches of sentences of similar length, which favors other libraries."""
        workload = self._workload
        ids = [[*workload.trained_model.source_tokenizer.encode(text), workload.eos] for text in workload.texts]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        return ids, [order[start : start + BATCH_SIZE] for start in range(0, len(order), BATCH_SIZE)]

    @torch.no_grad()
    def search_batches(self, best: Callable[[Tensor], list[list[int]]]) -> list[str]:
        """Return the texts of the answers of `best` to padded batches of ids."""
        ids, batches = self.batches()
        workload, translations = self._workload, [""] * len(ids)
        for batch in batches:
            rows = [torch.tensor(ids[i]) for i in batch]
            source = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=workload.pad)
            for i, row in zip(batch, best(source), strict=True):
                translations[i] = workload.trained_model.tokenizer.decode(
                    row[: row.index(workload.eos)] if workload.eos in row else row
                )
        return translations


class Workload:
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

    def pairs_to_check(self) -> list[tuple[list[int], list[int]]]:
        """Return the ids of the first sources and references."""
        return [
            (
                [*self.trained_model.source_tokenizer.encode(text), self.eos],
                [*self.trained_model.tokenizer.encode(reference), self.eos],
            )
            for text, reference in zip(self.texts[:N_CHECKED], self.references[:N_CHECKED], strict=True)
        ]


def likelihoods(model: Any, workload: Workload, *, theirs: bool) -> Tensor:
    """Return ln p of each token of the first references, including the end: equal for all contenders."""
    logprobs: list[Tensor] = []
    for source, target in workload.pairs_to_check():
        read, target_start = torch.tensor([source]), torch.tensor([[workload.bos, *target[:-1]]])
        logits = model(input_ids=read, decoder_input_ids=target_start).logits if theirs else model(read, target_start)
        logprobs.append(logits[0].log_softmax(-1).gather(-1, torch.tensor(target)[:, None])[:, 0])
    return torch.cat(logprobs)


class Ours(Searching):
    def setup(self) -> None:
        self.model = copy.deepcopy(self._workload.model)
        if self.settings.precision != "fp32":
            quantize(self.model, self.settings.precision)

    @torch.no_grad()
    def answer(self) -> Tensor | None:
        fp32 = self.settings.precision == "fp32"
        return likelihoods(self.model, self._workload, theirs=False) if fp32 else None

    def search(self) -> list[str]:
        workload = self._workload
        answers = translate(
            self.model, workload.trained_model.tokenizer, workload.texts, Beam(size=SIZE),
            source_tokenizer=workload.trained_model.source_tokenizer,
        )  # fmt: skip
        return [answer[0].text for answer in answers]


class Hugging(Searching):
    def setup(self) -> None:
        self.model: Any = hugging(self._workload.model, self.settings.attention).eval()

    @torch.no_grad()
    def answer(self) -> Tensor:
        return likelihoods(self.model, self._workload, theirs=True)

    def search(self) -> list[str]:
        return self.search_batches(self._best)

    def _best(self, source: Tensor) -> list[list[int]]:
        workload = self._workload
        longest = min(2 * source.shape[1] + 10, workload.model.max_len - 1)
        ids = self.model.generate(
            source, attention_mask=(source != workload.pad).long(), num_beams=SIZE, length_penalty=1.0,
            max_new_tokens=longest, do_sample=False, early_stopping=True, decoder_start_token_id=workload.bos,
            eos_token_id=workload.eos, bad_words_ids=[[workload.pad], [workload.bos]],
        )  # fmt: skip
        return [row[1:] for row in ids.tolist()]

    def close(self) -> None:
        del self.model


class JoeyNMT(Searching):
    """JoeyNMT, for a translator of the original architecture, which is the only one whose weights it can hold."""

    def __init__(self, *args: Any, installation: Path, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._installation = installation

    def setup(self) -> None:
        self.model: Any = joeynmt.joeynmt(self._installation, self._workload.model, smoothing=0.0).eval()
        joeynmt.copy_weights(self._workload.model, self.model)

    def search(self) -> list[str]:
        return self.search_batches(
            lambda source: joeynmt.search(self.model, source, size=SIZE, longest=2 * source.shape[1] + 10)
        )

    def close(self) -> None:
        del self.model


class CTranslate2(Searching):
    def setup(self) -> None:
        model_folder = self._folder / "ctranslate2"
        if not (model_folder / "model.bin").is_file():
            model_folder.mkdir(parents=True, exist_ok=True)
            ctranslate2_writer(self._workload.trained_model)(model_folder)
        self.model = CTranslate2Process("Translator", model_folder, self.settings.precision)
        self._read = Vocabulary.of(self._workload.trained_model.source_tokenizer).tokens
        self._write = Vocabulary.of(self._workload.trained_model.tokenizer).tokens
        self._ids = {token: n for n, token in enumerate(self._write)}

    def answer(self) -> Tensor | None:
        if self.settings.precision != "fp32":
            return None
        pairs = self._workload.pairs_to_check()
        sources = [[self._read[n] for n in source] for source, _ in pairs]
        targets = [[self._write[n] for n in target[:-1]] for _, target in pairs]
        return torch.tensor(self.model.call(_scores, sources, targets))

    def search(self) -> list[str]:
        ids, batches = self.batches()
        translations = [""] * len(ids)
        for batch in batches:
            longest = min(2 * max(len(ids[i]) for i in batch) + 10, self._workload.model.max_len - 1)
            answers = self.model.call(_translate, [[self._read[n] for n in ids[i]] for i in batch], longest)
            for i, best in zip(batch, answers, strict=True):
                translations[i] = self._workload.trained_model.tokenizer.decode([self._ids[token] for token in best])
        return translations

    def peak_memory(self) -> int:
        return self.model.peak_memory()

    def close(self) -> None:
        self.model.close()


def _scores(model: Any, sources: list[list[str]], targets: list[list[str]]) -> list[float]:
    return [number for result in model.score_batch(sources, targets) for number in result.log_probs]


def _translate(model: Any, sources: list[list[str]], longest: int) -> list[list[str]]:
    results = model.translate_batch(
        sources, beam_size=SIZE, length_penalty=1.0, max_decoding_length=longest, max_batch_size=BATCH_SIZE
    )
    return [result.hypotheses[0] for result in results]


def lineup(options: Options) -> Lineup:
    lineup = Lineup()
    folder = options.translator or DEFAULT
    if not folder.exists():
        lineup.leave_out("all", HOW)
        return lineup
    try:
        workload = Workload(load_model(folder), SENTENCES[options.scale])
    except (UserError, AssertionError, KeyError) as error:
        lineup.leave_out("all", f"{folder}: {error or 'no translator'}")
        return lineup

    def contender(kind: Any, name: str, side: Any, settings: Settings, **kwargs: Any) -> Contender:
        return kind(name, side, settings, workload=workload, folder=options.folder / f"beam-{options.scale}", **kwargs)

    def transformers_contenders() -> list[Contender]:
        import transformers  # noqa: F401

        return [
            contender(Hugging, "transformers", "readme", Settings(attention="sdpa")),
            contender(Hugging, "transformers, eager, oneDNN", "peer", Settings(attention="eager", matmul="medium")),
        ]

    def ctranslate2_contenders() -> list[Contender]:
        import ctranslate2  # noqa: F401

        return [
            contender(CTranslate2, f"CTranslate2, {precision}", "peer", Settings(precision=precision))
            for precision in ("fp32", "int8")
        ]

    lineup.add(contender(Ours, "tercet", "ours", Settings(attention="own", keeps_memory=True)))
    lineup.add(contender(Ours, "tercet, int8", "ours", Settings(attention="own", keeps_memory=True, precision="int8")))
    lineup.try_to("transformers", transformers_contenders)
    lineup.try_to("CTranslate2", ctranslate2_contenders)
    if options.joeynmt is None:
        lineup.leave_out("JoeyNMT", joeynmt.MISSING)
    else:
        plain = Settings(attention="eager")
        lineup.add(contender(JoeyNMT, "JoeyNMT", "peer", plain, installation=options.joeynmt))
    lineup.notes.append(f"{len(workload.texts)} sentences of the test set, model {folder}")
    return lineup


BEAM = Row(
    name="beam",
    title="Beam search, Multi30k's test set, 5 beams, 32 sentences at once",
    lineup=lineup,
    unit="sentences",
)
