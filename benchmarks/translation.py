"""Translation beside its peers: the same shape, the same buckets, the same weights, in one process, in turn.

    python benchmarks/translation.py train                      # training steps, real tokens a second
    python benchmarks/translation.py decode --run runs/post      # beam 5 over the test set, sentences a second
    python benchmarks/translation.py invariance --run runs/mine  # the same ids whatever the batch, the order, the cache

The contenders are `transformers`' MarianMTModel and, where `--joeynmt FOLDER` names an installation of JoeyNMT 2.3, its
model and search. `decode` converts the run's weights for all of them, so they do the same arithmetic; the run must be
of the original kind, as `train` builds it:

    tercet train multi30k-de-en --out runs/post --set model.preset=transformer-tiny --set training.warmup_steps=60

Rounds take turns, so that a machine's moods fall on all alike. Medians are printed, and each ratio to the contender.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tercet.checkpoint import load_model
from tercet.data import PairsSpec, pairs_of
from tercet.evaluate import bleu
from tercet.generation import Beam, translate
from tercet.models import EncoderDecoder, EncoderDecoderSpec
from tercet.objectives import IGNORED, PairBatch, seq2seq_loss
from tercet.tokens import Tokenizer
from tercet.training.recipe import TranslationRecipe, parse_recipe
from tercet.training.tasks.translation import TranslationTask

SIZES = {"d_model": 256, "n_layers": 4, "n_heads": 4, "d_ff": 1024}
SMOOTHING = 0.1
BEAM = 5
PAD, BOS, EOS = 0, 1, 2  # the ids of our tokenizers


class Ours:
    name = "tercet"

    def __init__(self, spec: EncoderDecoderSpec) -> None:
        self.model = EncoderDecoder(spec, seed=1)

    def loss(self, batch: PairBatch) -> Tensor:
        return seq2seq_loss(self.model, batch, smoothing=SMOOTHING).mean


class Marian:
    """`transformers`, its attention written out ("eager") or by PyTorch's kernel ("sdpa")."""

    def __init__(self, spec: EncoderDecoderSpec, attention: str) -> None:
        from transformers import MarianConfig, MarianMTModel

        self.name = f"transformers, {attention}"
        stack = spec.encoder
        sizes = {
            f"{side}_{key}": value
            for side in ("encoder", "decoder")
            for key, value in (("layers", stack.n_layers), ("attention_heads", stack.n_heads), ("ffn_dim", stack.d_ff))
        }
        config = MarianConfig(
            vocab_size=spec.vocab_size, d_model=stack.d_model, max_position_embeddings=spec.max_len,
            activation_function="relu", dropout=stack.dropout.residual, attention_dropout=0.0, scale_embedding=True,
            pad_token_id=PAD, eos_token_id=EOS, bos_token_id=BOS, decoder_start_token_id=BOS, forced_eos_token_id=None,
            share_encoder_decoder_embeddings=True, attn_implementation=attention, use_cache=True, **sizes,
        )  # fmt: skip
        self.model = MarianMTModel(config)

    def loss(self, batch: PairBatch) -> Tensor:
        mask = None if batch.source_token_mask is None else batch.source_token_mask.long()
        out = self.model(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.inputs, use_cache=False)
        return F.cross_entropy(
            out.logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, label_smoothing=SMOOTHING
        )

    def search(self, source: Tensor, padding: Tensor) -> list[list[int]]:
        longest = 2 * source.shape[1] + 10
        ids = self.model.generate(
            source, attention_mask=padding.long(), num_beams=BEAM, length_penalty=1.0, max_new_tokens=longest,
            do_sample=False, early_stopping=True, bad_words_ids=[[PAD], [BOS]],
        )  # fmt: skip
        return [row[1:] for row in ids.tolist()]

    def take(self, ours: EncoderDecoder) -> None:
        """Its sines fill the first half and its cosines the second, so all channels change their places alike."""
        d_model = ours.spec.encoder.d_model
        order = torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))
        names = {
            "self_attention.query": "self_attn.q_proj", "self_attention.key": "self_attn.k_proj",
            "self_attention.value": "self_attn.v_proj", "self_attention.out": "self_attn.out_proj",
            "self_residual.after": "self_attn_layer_norm", "cross_attention.query": "encoder_attn.q_proj",
            "cross_attention.key": "encoder_attn.k_proj", "cross_attention.value": "encoder_attn.v_proj",
            "cross_attention.out": "encoder_attn.out_proj", "cross_residual.after": "encoder_attn_layer_norm",
            "feedforward.up": "fc1", "feedforward.down": "fc2", "feedforward_residual.after": "final_layer_norm",
        }  # fmt: skip
        into = self.model.state_dict()
        for name, value in ours.state_dict().items():
            side, _, rest = name.partition(".blocks.")
            if not rest:
                if name == "embedding.weight":
                    into["model.shared.weight"].copy_(value[:, order])
                continue
            number, _, part = rest.partition(".")
            part, _, kind = part.rpartition(".")
            writes = part.endswith((".out", ".down", ".after"))  # its rows are channels; else its columns are
            moved = value[order] if writes else value if kind == "bias" else value[:, order]
            into[f"model.{side}.layers.{number}.{names[part]}.{kind}"].copy_(moved)


class Joey:
    name = "joeynmt"

    def __init__(self, spec: EncoderDecoderSpec) -> None:
        from joeynmt.model import build_model

        class Vocabulary(SimpleNamespace):
            def __len__(self) -> int:
                return spec.vocab_size

        vocabulary = Vocabulary(
            pad_index=PAD, bos_index=BOS, eos_index=EOS, unk_index=PAD, sep_index=None, lang_tags=[], specials=[]
        )
        stack = spec.encoder
        side = {
            "type": "transformer", "num_layers": stack.n_layers, "num_heads": stack.n_heads,
            "embeddings": {"embedding_dim": stack.d_model, "scale": True, "dropout": stack.dropout.embedding},
            "hidden_size": stack.d_model, "ff_size": stack.d_ff, "dropout": stack.dropout.residual,
            "layer_norm": "post", "activation": "relu",
        }  # fmt: skip
        config = {"encoder": side, "decoder": side, "tied_embeddings": True, "tied_softmax": True}
        self.model = build_model(config, vocabulary, vocabulary)
        self.model.loss_function = ("crossentropy", SMOOTHING)

    def _batch(self, source: Tensor, target: Tensor | None) -> Any:
        from joeynmt.batch import Batch

        lengths = (source != PAD).sum(1)
        return Batch(
            src=source, src_length=lengths, src_prompt_mask=None, trg=target, trg_prompt_mask=None,
            indices=torch.arange(len(source)), device=torch.device("cpu"), pad_index=PAD, eos_index=EOS,
            is_train=target is not None,
        )  # fmt: skip

    def loss(self, batch: PairBatch) -> Tensor:
        last = batch.targets[:, -1:].clamp(min=PAD)
        joined = self._batch(batch.source, torch.cat((batch.inputs, last), dim=1))
        total, _, _, _ = self.model(return_type="loss", **vars(joined))
        return total / joined.ntokens

    def search(self, source: Tensor, padding: Tensor) -> list[list[int]]:
        from joeynmt.search import search

        ids, _, _ = search(
            self.model, self._batch(source, None), 2 * source.shape[1] + 10, beam_size=BEAM, beam_alpha=1.0
        )
        return ids.tolist()

    def take(self, ours: EncoderDecoder) -> None:
        names = {
            "encoder": {"self_attention": "src_src_att", "self_residual.after": "layer_norm"},
            "decoder": {
                "self_attention": "trg_trg_att", "self_residual.after": "x_layer_norm",
                "cross_attention": "src_trg_att", "cross_residual.after": "dec_layer_norm",
            },
        }  # fmt: skip
        parts = {"query": "q_layer", "key": "k_layer", "value": "v_layer", "out": "output_layer"}
        fixed = {
            "feedforward.up": "feed_forward.pwff_layer.0", "feedforward.down": "feed_forward.pwff_layer.3",
            "feedforward_residual.after": "feed_forward.layer_norm",
        }  # fmt: skip
        into = self.model.state_dict()
        for name, value in ours.state_dict().items():
            side, _, rest = name.partition(".blocks.")
            if not rest:
                if name == "embedding.weight":
                    into["src_embed.lut.weight"].copy_(value)
                continue
            number, _, part = rest.partition(".")
            part, _, kind = part.rpartition(".")
            if part in fixed:
                there = fixed[part]
            elif part in names[side]:
                there = names[side][part]
            else:
                attention, _, linear = part.partition(".")
                there = f"{names[side][attention]}.{parts[linear]}"
            into[f"{side}.layers.{number}.{there}.{kind}"].copy_(value)


def contenders(spec: EncoderDecoderSpec, joeynmt: str | None) -> list[Any]:
    found: list[Any] = [Marian(spec, "eager"), Marian(spec, "sdpa")]
    if joeynmt:
        sys.path.append(joeynmt)
        found.append(Joey(spec))
    return found


def train(args: argparse.Namespace) -> dict[str, Any]:
    stack = {**SIZES, "dropout": {"embedding": 0.1, "residual": 0.1}}
    recipe = parse_recipe(
        {
            "data": {
                "source": "multi30k", "source_language": "de", "target_language": "en",
                "tokenizer": {"kind": "bpe", "vocab_size": 8000, "prefix_space": True},
            },
            "model": {"preset": "transformer-tiny", "max_len": 128, "encoder": stack, "decoder": stack},
            "task": {"kind": "translation", "batch_tokens": args.tokens},
            "training": {"max_steps": 1},
        },
        name="benchmark",
    )  # fmt: skip
    assert isinstance(recipe, TranslationRecipe)
    task = TranslationTask(recipe)
    spec = task.recipe.model
    all_of_them = [Ours(spec), *contenders(spec, args.joeynmt)]
    work = {one.name: _step(one) for one in all_of_them}
    speeds: dict[str, list[float]] = {one.name: [] for one in all_of_them}
    for step in work.values():
        step(task.batches(0, 0, 1)[0])
    for number in range(args.rounds):
        steps = [1 + number * args.steps + i for i in range(args.steps)]
        batches = [task.batches(step, 0, 1)[0] for step in steps]
        tokens = task.tokens_before(steps[-1] + 1) - task.tokens_before(steps[0])
        for name, step in work.items():
            start = time.perf_counter()
            for batch in batches:
                step(batch)
            speeds[name].append(tokens / (time.perf_counter() - start))
    return _report(speeds, "real source and target tokens/s")


def _step(contender: Any) -> Callable[[PairBatch], None]:
    parameters = list(contender.model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    contender.model.train()

    def step(batch: PairBatch) -> None:
        contender.loss(batch).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@torch.no_grad()
def decode(args: argparse.Namespace) -> dict[str, Any]:
    model, tokenizer, texts, references = _opened(args)
    peers = contenders(replace(model.spec, max_len=512), args.joeynmt)
    for peer in peers:
        peer.take(model)
        peer.model.eval()

    def theirs(peer: Any) -> list[str]:
        ids = [[*tokenizer.encode(text), EOS] for text in texts]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # a favour: less padding
        written = [""] * len(ids)
        for start in range(0, len(order), args.at_once):
            some = order[start : start + args.at_once]
            source = nn.utils.rnn.pad_sequence([torch.tensor(ids[i]) for i in some], batch_first=True)
            for i, answer in zip(some, peer.search(source, source != PAD), strict=True):
                ended = answer[: answer.index(EOS)] if EOS in answer else answer
                written[i] = tokenizer.decode(ended)
        return written

    def ours() -> list[str]:
        return [one[0].text for one in translate(model, tokenizer, texts, Beam(size=BEAM))]

    work: dict[str, Callable[[], list[str]]] = {"tercet": ours}
    work |= {peer.name: (lambda peer=peer: theirs(peer)) for peer in peers}
    speeds: dict[str, list[float]] = {name: [] for name in work}
    scores: dict[str, float] = {}
    for _ in range(args.rounds):
        for name, search in work.items():
            start = time.perf_counter()
            written = search()
            speeds[name].append(len(texts) / (time.perf_counter() - start))
            scores[name] = bleu(written, references)
    return _report(speeds, "sentences/s", bleu=scores)


@torch.no_grad()
def invariance(args: argparse.Namespace) -> dict[str, Any]:
    """Each way of asking beside all sentences asked at once: how many translations have the same ids."""
    model, tokenizer, texts, _ = _opened(args)

    def ids(size: int, beam: int, order: list[int]) -> list[tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for start in range(0, len(order), size):
            some = order[start : start + size]
            answers = translate(model, tokenizer, [texts[i] for i in some], Beam(size=beam), batch_tokens=1 << 30)
            found |= {i: answer[0].ids for i, answer in zip(some, answers, strict=True)}
        return [found[i] for i in range(len(order))]

    as_given = list(range(len(texts)))
    by_length = sorted(as_given, key=lambda i: len(texts[i]))
    same: dict[str, float] = {}
    for beam in (1, BEAM):
        reference = [answer[0].ids for answer in translate(model, tokenizer, texts, Beam(size=beam))]
        for size in (1, 7, 64):
            for name, order in (("as given", as_given), ("by length", by_length)):
                found = ids(size, beam, order)
                equal = sum(a == b for a, b in zip(found, reference, strict=True))
                same[f"beam {beam}, {size} at once, {name}"] = equal / len(texts)
        if beam == 1:
            equal = sum(_without_cache(model, tokenizer, text) == b for text, b in zip(texts, reference, strict=True))
            same["beam 1, without a cache"] = equal / len(texts)
    for name, share in same.items():
        print(f"  {name:36} {share:8.2%} of {len(texts):,} translations have the same ids")
    return {"same": same}


def _without_cache(model: EncoderDecoder, tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Greedy search that reads everything anew for each token."""
    source = torch.tensor([[*tokenizer.encode(text), EOS]])
    written = [BOS]
    while len(written) <= Beam().longest(source.shape[1]):
        scores = model(source, torch.tensor([written]))[0, -1]
        scores[[PAD, BOS]] = float("-inf")
        written.append(int(scores.argmax()))
        if written[-1] == EOS:
            break
    return tuple(written[1:])


def _opened(args: argparse.Namespace) -> tuple[EncoderDecoder, Tokenizer, list[str], list[str]]:
    """The run's model and tokenizer, and the sources and references of its dataset's test part."""
    run = load_model(args.run)
    assert isinstance(run.model, EncoderDecoder)
    data = run.card.recipe["data"]
    spec = PairsSpec(
        source=data["source"], source_language=data["source_language"], target_language=data["target_language"]
    )
    pairs = pairs_of(spec, "test")[: args.sentences]
    return run.model, run.tokenizer, [source for source, _ in pairs], [target for _, target in pairs]


def _report(speeds: dict[str, list[float]], unit: str, **more: dict[str, float]) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print(f"{unit}; median of {len(next(iter(speeds.values())))} rounds, threads {torch.get_num_threads()}")
    for name, median in medians.items():
        extra = "".join(f"  {key} {values[name]:.2f}" for key, values in more.items())
        print(f"  {name:22} {median:10,.1f}   tercet is {medians['tercet'] / median:5.2f} x{extra}")
    return {"unit": unit, "rounds": speeds, **more}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "decode", "invariance"))
    parser.add_argument("--run", default="runs/post", help="for decode, one of the original kind")
    parser.add_argument("--joeynmt", metavar="FOLDER", help="where JoeyNMT is installed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="training steps in a round")
    parser.add_argument("--tokens", type=int, default=4096, help="batch_tokens")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=32, help="sentences in the peers' batches")
    parser.add_argument("--json", metavar="FILE", help="write every round's figure there")
    args = parser.parse_args()
    result = {"train": train, "decode": decode, "invariance": invariance}[args.what](args)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
