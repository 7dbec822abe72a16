"""Text embeddings on one GPU: BERT base in bf16, texts of 4 to 200 words, from text to numbers on the host."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.speed.contender import Contender, Settings, Side
from benchmarks.speed.peers.hugging import hugging
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.rows import bert
from benchmarks.speed.rows.gpu_training import BERT_SIZES
from benchmarks.speed.words import SPECIAL, tokenizer, words
from torch import Tensor, nn

import tercet
from tercet.checkpoint import TrainedModel
from tercet.models import EncoderOnly

TEXTS, LONGEST, BATCH_SIZE = 2048, 200, 128
N_CHECKED = 5  # texts whose vectors are compared with Tercet's
TINY_SIZES = {"layers": 2, "width": 24, "heads": 2, "length": 16, "vocabulary": 23}


class Embedding(Contender):
    """A contender that computes vectors of length 1 from texts: the mean of all tokens."""

    def __init__(self, name: str, side: Side, settings: Settings, *, model: Any, texts: list[str], count: int) -> None:
        super().__init__(name, side, settings)
        self._build, self._texts, self._count = model, texts, count

    def run(self, n: int) -> float:
        for _ in range(n):
            self.vectors(self._texts)
        return n * self._count

    def answer(self) -> Tensor | None:
        vectors = torch.from_numpy(self.vectors(self._texts[:N_CHECKED]))
        return vectors if self.settings.precision == "fp32" else None

    def vectors(self, texts: list[str]) -> np.ndarray:
        raise NotImplementedError

    def close(self) -> None:
        del self.model


class Ours(Embedding):
    def setup(self) -> None:
        self.model = self._build().eval().to(self.device)
        if self.settings.precision == "bf16":
            self.model.bfloat16()
        names = tokenizer(self.model.spec.vocab_size)
        self._run = tercet.Run(trained_model=TrainedModel.wrap(self.model, names, folder=Path("random")))

    def vectors(self, texts: list[str]) -> np.ndarray:
        return self._run.embed(texts)


class Hugging(Embedding):
    """The library's encoder with batches of texts of similar length, as in sentence-transformers."""

    def setup(self) -> None:
        ours = self._build()
        self._tokenizer = tokenizer(ours.spec.vocab_size)
        self.model: Any = hugging(ours, self.settings.attention).bert.eval().to(self.device)
        if self.settings.precision == "bf16":
            self.model.bfloat16()
        if self.settings.compiled:
            self.model.compile(dynamic=True)

    @torch.no_grad()
    def vectors(self, texts: list[str]) -> np.ndarray:
        bos, eos = self._tokenizer.bos_id, self._tokenizer.eos_id
        rows = [torch.tensor([bos, *ids.tolist(), eos]) for ids in self._tokenizer.encode_batch(texts)]
        order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
        batch_vectors: list[Tensor] = []
        for start in range(0, len(order), BATCH_SIZE):
            batch_rows = [rows[number] for number in order[start : start + BATCH_SIZE]]
            ids = nn.utils.rnn.pad_sequence(batch_rows, batch_first=True).to(self.device)
            real = (torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in batch_rows])[:, None]).to(
                self.device
            )
            hidden = self.model(input_ids=ids, attention_mask=real.long()).last_hidden_state.float()
            mean = (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)
            batch_vectors.append(F.normalize(mean, dim=-1))
        vectors = torch.cat(batch_vectors).cpu().numpy()
        return vectors[np.argsort(order)]


def lineup(options: Options) -> Lineup:
    tiny = options.scale == "tiny"
    sizes = TINY_SIZES if tiny else BERT_SIZES
    names = words(sizes["vocabulary"])
    generator = np.random.default_rng(0)
    lengths = generator.integers(4, (13 if tiny else LONGEST) + 1, 11 if tiny else TEXTS)
    texts = [" ".join(names[i] for i in generator.integers(len(SPECIAL), len(names), length)) for length in lengths]

    def model() -> EncoderOnly:
        return EncoderOnly(bert.build_spec(**sizes), seed=1)

    def contender(kind: type[Embedding], name: str, side: Side, settings: Settings) -> Contender:
        return kind(name, side, settings, model=model, texts=texts, count=int(lengths.sum()))

    half = {"precision": "bf16"}

    def transformers_contenders() -> list[Contender]:
        import transformers  # noqa: F401

        compiled = Settings(attention="sdpa", compiled=not tiny, dynamic=True, **half)
        return [
            contender(Hugging, "transformers", "readme", Settings(attention="sdpa")),
            contender(Hugging, "transformers, bf16", "peer", Settings(attention="sdpa", **half)),
            contender(Hugging, "transformers, bf16, compiled", "peer", compiled),
        ]

    lineup = Lineup()
    lineup.add(contender(Ours, "tercet", "ours", Settings(attention="own")))
    lineup.add(contender(Ours, "tercet, bf16", "ours", Settings(attention="own", **half)))
    lineup.try_to("transformers", transformers_contenders)
    return lineup


ENCODING = [Row(name="embed", title="Vectors of texts on a GPU: BERT base, 4 to 200 words", lineup=lineup)]
