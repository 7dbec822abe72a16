"""Train with a plain loop: the same computation as `tercet train`, without Lightning, checkpoints and metrics.

    python examples/train_by_hand.py

This trains a small GPT on thirteen facts. A test checks that the weights are bitwise identical to those of
`tercet train` with the same recipe.
"""

import torch

from tercet.data import PackedRows, PaddedRows, prepare
from tercet.models import DecoderOnly
from tercet.objectives import causal_loss, collate_causal
from tercet.training import load_recipe
from tercet.training.loop.module import step_seed
from tercet.training.optim.optimizers import base_rates, build_optimizer, set_rates
from tercet.training.optim.schedules import rate_factor
from tercet.training.recipe.recipe import LanguageRecipe
from tercet.training.tasks.plan import plan_of
from tercet.training.tasks.text_rows import training_rows


def train_by_hand(recipe: LanguageRecipe) -> DecoderOnly:
    """Return the model after the last step of the recipe, trained on the CPU in float32."""
    # Tokenize the text and cut it into rows of max_len + 1 tokens: inputs, and the next token of each as its target.
    corpus = prepare(recipe.data)
    recipe = recipe.with_vocabulary(corpus.tokenizer.vocab_size)
    spec = recipe.training
    rows: PackedRows | PaddedRows = training_rows(corpus, recipe.data, recipe.model.max_len)
    size = recipe.task.micro_batch(spec.world_size)
    plan = plan_of(spec, len(rows), batch=recipe.task.batch_size, micro=size)

    model = DecoderOnly(recipe.model, seed=spec.seed)
    optimizer = build_optimizer(spec.optimizer, model)
    base = base_rates(optimizer)

    for step in range(plan.steps):
        # The learning rate is a function of the step, so a resumed run needs no scheduler state.
        set_rates(optimizer, base, rate_factor(spec.schedule, step=step, warmup=spec.warmup_steps, total=plan.steps))

        # The rows of this step, in micro-batches that fit into memory.
        numbers, epochs = plan.rows(step)
        shifts = plan.shifts(epochs, recipe.model.max_len)
        cuts = range(0, len(numbers), size)
        batches = [collate_causal(rows.batch(numbers[i : i + size], shifts[i : i + size])) for i in cuts]

        # Each loss is a sum. Divided by the targets of the whole step, the gradients add up to that of the mean loss.
        targets = torch.stack([(batch.targets >= 0).sum() for batch in batches]).sum().clamp(min=1)
        for place, batch in enumerate(batches):
            torch.manual_seed(step_seed(spec.seed, step, micro_batch=place))  # for dropout
            (causal_loss(model, batch).total * (1 / targets)).backward()

        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip_norm or float("inf"))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model


if __name__ == "__main__":
    from tercet.generation import Sampling, generate

    facts = load_recipe("animals", {"training": {"max_epochs": 10, "accelerator": "cpu", "precision": "fp32"}})
    assert isinstance(facts, LanguageRecipe)
    trained_model = train_by_hand(facts)
    print(generate(trained_model, prepare(facts.data).tokenizer, ["elephants"], Sampling(max_new_tokens=60))[0].text)
