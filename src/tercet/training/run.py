"""`train`: from a recipe to a run folder. The same call on the same folder goes on where the last one stopped.

    recipe.yaml  run.json  metrics.csv  loss.png  samples/  best/  last/  resume.ckpt

Lightning is imported last, when everything that a user can have got wrong has been looked at.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from tercet.checkpoint import Card, current_versions, git_commit, save_model, write_atomically
from tercet.config import UserError, differences, plain, read_yaml, write_yaml
from tercet.data import Corpus, prepare
from tercet.generation import encode_prompt
from tercet.models import DecoderOnly
from tercet.training.recipe import Recipe, parse_recipe


class Interrupted(Exception):
    """The run was stopped by a signal, after it was saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = number


def train(recipe: Recipe, out: Path | str, *, quiet: bool = False) -> Path:
    """Train as the recipe says.

    Args:
        out: the run's folder; made where it is missing, resumed where it holds a run of the same recipe.
        quiet: no progress on stderr.

    Returns:
        the run's folder.

    Raises:
        UserError: where data or settings don't fit, or the folder holds a run with other settings.
        Interrupted: after a Ctrl-C or SIGTERM, when everything is saved.
    """
    out = Path(out)
    _check_same(out, recipe)
    corpus = prepare(recipe.data, progress=not quiet)
    full = recipe.with_vocabulary(corpus.tokenizer.vocab_size)
    try:
        model = DecoderOnly(full.model, seed=recipe.training.seed)
    except ValueError as error:
        raise UserError(f"model: {error}") from None

    if recipe.training.sample_tokens and recipe.training.sample_prompt is not None:
        encode_prompt(corpus.tokenizer, recipe.training.sample_prompt)  # refused now, not after an hour

    from tercet.training.batches import Batches

    batches = Batches(corpus, full)
    facts = _facts(out, full, corpus, model, batches, quiet)
    if facts["finished"]:
        _say(f"{out} is already finished; give another --out to train again", quiet)
        return out
    _train(full, model, batches, out, facts, quiet)
    return out


def read_recipe(run: Path | str) -> Recipe:
    """The recipe of a run.

    Raises:
        UserError: where the folder holds none.
    """
    path = Path(run) / "recipe.yaml"
    return parse_recipe(read_yaml(path), name=str(path))


def _train(recipe: Recipe, model: DecoderOnly, batches: Any, out: Path, facts: dict[str, Any], quiet: bool) -> None:
    from tercet.training.curves import draw_loss
    from tercet.training.fit import fit
    from tercet.training.machine import rank
    from tercet.training.module import Diverged

    try:
        signal = fit(
            recipe, model, batches, out, precision=facts["precision"], compiled=facts["compile"] == "always",
            export=_exporter(recipe, batches.corpus, out), quiet=quiet,
        )  # fmt: skip
    except Diverged as error:
        raise UserError(
            f"{error}; the last good checkpoint is in {out}: try a smaller training.optimizer.lr, or clip_norm"
        ) from None
    if (out / "metrics.csv").exists() and not rank(recipe.training):
        draw_loss(out / "metrics.csv", out / "loss.png", title=out.name)
    if signal is not None:
        raise Interrupted(signal, f"saved in {out}; the same command goes on from there")
    if not rank(recipe.training):
        _write_facts(out, {**facts, "finished": True})


def _check_same(out: Path, recipe: Recipe) -> None:
    """A folder holds one run. Where figures are logged to may change; nothing that changes the model may."""
    if out.is_file():
        raise UserError(f"--out {out} is a file; give a folder")
    if not (out / "recipe.yaml").exists():
        # Hidden files may be what a run left that was killed at its very beginning.
        if out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir()):
            raise UserError(f"{out} is not empty and holds no run; give another --out")
        return
    old, new = plain(read_recipe(out)), plain(recipe)
    old["model"]["vocab_size"] = new["model"]["vocab_size"]
    changed = [line for line in differences(old, new) if not line.startswith("logging.")]
    if changed:
        raise UserError(f"{out} holds a run with other settings ({'; '.join(changed)}); give another --out")


def _facts(out: Path, recipe: Recipe, corpus: Corpus, model: DecoderOnly, batches: Any, quiet: bool) -> dict[str, Any]:
    """What `auto` came to and which data it was: settled once, when a run begins, and kept through every resumption."""
    from tercet.training.machine import choose_compile, choose_precision, rank, wait_for
    from tercet.training.recipe import TrainingSpec

    path = out / "run.json"
    if rank(recipe.training):
        wait_for(path)
    if path.exists():
        facts: dict[str, Any] = json.loads(path.read_text())
        if (facts["data"], facts["tokenizer"]) != (corpus.hash, corpus.tokenizer.hash):
            raise UserError(f"the data has changed since {out} was begun; give another --out")
        return facts
    spec: TrainingSpec = recipe.training
    precision = choose_precision(spec)
    compiled, why = choose_compile(spec, model, batches.first(), batches.steps)
    parameters = sum(p.numel() for p in model.parameters())
    _say(f"{parameters:,} parameters, {len(corpus.train):,} training tokens, {batches.steps:,} steps; {precision}, "
         f"{'compiled' if compiled == 'always' else 'not compiled'} ({why})", quiet)  # fmt: skip
    facts = {
        "finished": False, "data": corpus.hash, "tokenizer": corpus.tokenizer.hash,
        "precision": precision, "compile": compiled,
    }  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; give another --out") from None
    write_atomically(out / "recipe.yaml", write_yaml(recipe).encode())
    _write_facts(out, facts)
    return facts


def _write_facts(out: Path, facts: dict[str, Any]) -> None:
    write_atomically(out / "run.json", (json.dumps(facts, indent=2) + "\n").encode())


def _exporter(recipe: Recipe, corpus: Corpus, out: Path) -> Any:
    commit, versions = git_commit(), current_versions()
    tokens_per_step = recipe.training.batch_size * recipe.model.max_len

    def export(folder: str, module: Any, step: int, metrics: dict[str, float]) -> None:
        state = whole_state(module.model)
        if not module.trainer.is_global_zero:
            return
        card = Card(
            name=out.name, step=step, tokens_seen=step * tokens_per_step, metrics=metrics, data_name=corpus.name,
            data_hash=corpus.hash, tokenizer_hash=corpus.tokenizer.hash, versions=versions, git_commit=commit,
            recipe=plain(recipe),
        )  # fmt: skip
        save_model(out / folder, module.model, corpus.tokenizer, card, state=state)

    return export


def whole_state(model: DecoderOnly) -> dict[str, torch.Tensor]:
    """The state dict, gathered on the first device where it is sharded over several."""
    from torch.distributed.tensor import DTensor

    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu()
        for name, value in model.state_dict().items()
    }


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)
