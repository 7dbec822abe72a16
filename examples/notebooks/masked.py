# %% [markdown]
# # A masked language model
#
# A small encoder learns sentences of a few words by filling gaps, in seconds on two cores. Who eats what is a rule of
# these sentences, so a mask has right and wrong answers. Nothing is downloaded.

# %%
import random
from pathlib import Path

import tercet
from tercet.plots import plot_attention

draw = random.Random(1)
eats = {"cow": ["grass", "hay"], "cat": ["fish", "mice"], "bird": ["seeds", "flies"], "bear": ["honey", "roots"]}
kinds = ["old", "small", "quiet", "hungry"]


def sentence():
    animal = draw.choice(list(eats))
    return f"the {draw.choice(kinds)} {animal} eats {draw.choice(eats[animal])} ."


Path("meals.txt").write_text("".join(sentence() + "\n" for _ in range(1500)))
sentence()

# %%
run = tercet.train(
    "bert-shakespeare",
    data="meals.txt",
    out="runs/notebook-masked",
    changes={
        "data.documents": "line",
        "data.tokenizer": {"kind": "words", "bos": True, "pad": True, "mask": True},
        "model.stack": {"d_model": 32, "n_layers": 2, "n_heads": 2, "d_ff": 64},
        "model.max_len": 16,
        "training.max_steps": 300,
        "training.validate_every": 100,
        "training.save_every": 300,
    },
)
run

# %% [markdown]
# What may stand behind a mask. Both sides count: the animal tells the food, and the food the animal.

# %%
run.fill("the old cow eats [MASK] .", top=4)

# %%
run.fill(["the old [MASK] eats honey .", "the [MASK] bird eats [MASK] ."], top=3)

# %% [markdown]
# How good it is on sentences that it has not seen, beside counting the words.

# %%
run.evaluate()

# %%
run.plot()

# %% [markdown]
# Where the heads look when they read a mask.

# %%
plot_attention(run.trained_model, "the old cow eats [MASK] .")

# %% [markdown]
# Vectors of texts: the nearest sentence by meaning, or by what this model takes for it.

# %%
texts = ["the small cow eats hay .", "the small cat eats mice .", "the small bird eats seeds ."]
run.search("the hungry cat eats fish .", texts, top=3)
