# %% [markdown]
# # A masked language model
#
# Train a small encoder on short sentences with masked tokens, in seconds on two cores. Each animal eats certain food,
# so predictions for a mask are right or wrong. Nothing is downloaded.

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
# Predict masked words. The model uses both sides: it predicts the food from the animal, and the animal from the food.

# %%
run.fill("the old cow eats [MASK] .", top=4)

# %%
run.fill(["the old [MASK] eats honey .", "the [MASK] bird eats [MASK] ."], top=3)

# %% [markdown]
# Evaluate the model on held-out sentences, and compare it with word frequencies.

# %%
run.evaluate()

# %%
run.plot()

# %% [markdown]
# Plot the attention of each head.

# %%
plot_attention(run.trained_model, "the old cow eats [MASK] .")

# %% [markdown]
# Compute vectors of texts, and search for the most similar sentences according to this model.

# %%
texts = ["the small cow eats hay .", "the small cat eats mice .", "the small bird eats seeds ."]
run.search("the hungry cat eats fish .", texts, top=3)
