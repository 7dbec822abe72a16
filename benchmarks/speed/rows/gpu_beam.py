"""Beam search on one GPU: 5 beams, a translator of the size for Multi30k, answers of a fixed length.

The weights are random and an answer never ends before its length, so that all contenders do the same work.
"""

from typing import Any

import torch
from benchmarks.speed.contender import Contender, Settings, Side
from benchmarks.speed.peers.hugging import hugging
from benchmarks.speed.row import Lineup, Options, Row
from torch import Tensor

from tercet.cli.device import place_model
from tercet.generation import Beam, beam_search
from tercet.models import EncoderDecoder, model_spec

SIZE = 5
FULL = {"layers": 4, "width": 256, "heads": 4, "vocabulary": 8192, "sentences": 128, "source": 16, "new": 16}
TINY = {"layers": 1, "width": 24, "heads": 2, "vocabulary": 19, "sentences": 3, "source": 5, "new": 4}
PAD, BOS, EOS, FIRST = 0, 1, 2, 3  # ids; FIRST is that of the first word


class Searching(Contender):
    """A contender that translates given sources.

    Args:
        build: Function that creates the model.
        sources: Ids of each source, all of one length.
        new: Tokens of each answer.
    """

    def __init__(
        self, name: str, side: Side, settings: Settings, *, build: Any, sources: list[list[int]], new: int
    ) -> None:
        super().__init__(name, side, settings)
        self._build, self._sources, self._new = build, sources, new

    def run(self, n: int) -> float:
        return sum(self.search() for _ in range(n))

    def search(self) -> int:
        """Translate all sources; return the number of answers."""
        raise NotImplementedError

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Return the sources, and the first token of each target."""
        sources = torch.tensor(self._sources, device=self.device)
        return sources, torch.full((len(sources), 1), BOS, device=self.device)

    def close(self) -> None:
        del self.model


class Ours(Searching):
    def setup(self) -> None:
        self.model: EncoderDecoder = self._build()
        precision = self.settings.precision
        place_model(self.model, self.device, "none" if precision == "fp32" else precision)

    def search(self) -> int:
        answers = beam_search(
            self.model, [[BOS]] * len(self._sources), Beam(size=SIZE), eos_id=EOS, forbidden={PAD, BOS},
            sources=self._sources, max_new_tokens=self._new, min_new_tokens=self._new,
        )  # fmt: skip
        assert all(len(best[0].ids) == self._new for best in answers)
        return len(answers)

    @torch.no_grad()
    def answer(self) -> Tensor | None:
        return self.model(*self.inputs()).cpu() if self.settings.precision == "fp32" else None


class Hugging(Searching):
    def setup(self) -> None:
        self.model: Any = hugging(self._build(), self.settings.attention).eval().to(self.device)
        if self.settings.precision == "bf16":
            self.model = self.model.bfloat16()

    @torch.no_grad()
    def search(self) -> int:
        sources, _ = self.inputs()
        ids = self.model.generate(
            sources, attention_mask=torch.ones_like(sources), num_beams=SIZE, length_penalty=1.0, do_sample=False,
            min_new_tokens=self._new, max_new_tokens=self._new, early_stopping=True, decoder_start_token_id=BOS,
            eos_token_id=EOS, bad_words_ids=[[PAD], [BOS]],
        )  # fmt: skip
        assert ids.shape[1] == 1 + self._new
        return len(ids)

    @torch.no_grad()
    def answer(self) -> Tensor | None:
        sources, targets = self.inputs()
        logits = self.model(input_ids=sources, decoder_input_ids=targets).logits
        return logits.cpu() if self.settings.precision == "fp32" else None


def lineup(options: Options) -> Lineup:
    sizes = TINY if options.scale == "tiny" else FULL
    stack = {
        "d_model": sizes["width"],
        "n_layers": sizes["layers"],
        "n_heads": sizes["heads"],
        "d_ff": 4 * sizes["width"],
    }
    stacks = {"encoder": stack, "decoder": stack}
    spec = model_spec({"preset": "transformer-tiny", "vocab_size": sizes["vocabulary"], "max_len": 64, **stacks})
    generator = torch.Generator().manual_seed(0)
    size = sizes["sentences"], sizes["source"]
    sources = torch.randint(FIRST, sizes["vocabulary"], size, generator=generator).tolist()

    def model() -> EncoderDecoder:
        return EncoderDecoder(spec, seed=1).eval()

    def contender(kind: Any, name: str, side: Side, settings: Settings) -> Contender:
        return kind(name, side, settings, build=model, sources=sources, new=sizes["new"])

    def transformers_contenders() -> list[Contender]:
        import transformers  # noqa: F401

        return [
            contender(Hugging, "transformers", "readme", Settings(attention="sdpa")),
            contender(Hugging, "transformers, bf16", "peer", Settings(attention="sdpa", precision="bf16")),
        ]

    lineup = Lineup()
    lineup.add(contender(Ours, "tercet", "ours", Settings(attention="own")))
    lineup.add(contender(Ours, "tercet, bf16", "ours", Settings(attention="own", precision="bf16")))
    lineup.try_to("transformers", transformers_contenders)
    return lineup


BEAM_ON_GPU = Row(
    name="beam",
    title="Beam search on a GPU, 5 beams, 128 sentences at once, 4 + 4 layers of 256, 16 tokens each",
    lineup=lineup,
    unit="sentences",
)
