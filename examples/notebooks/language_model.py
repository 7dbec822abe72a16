# %% [markdown]
# # A language model
#
# A small GPT learns from the prose that comes with Python, in less than a minute on two cores. Nothing is downloaded.

# %%
import tercet

run = tercet.train(
    "demo",
    out="runs/notebook-language",
    changes={"training.max_steps": 60, "training.validate_every": 20, "training.save_every": 60},
)
run

# %% [markdown]
# What it writes. So short a training gives little more than the look of words; `tercet.More(500)` makes it longer.

# %%
run.completions("The ", temperature=0.8, max_new_tokens=40)[0][0]

# %%
for piece in run.stream("A function ", temperature=0.8, max_new_tokens=40):
    print(piece, end="")

# %% [markdown]
# How good it is, on text that it has not seen, and what was noted on the way.

# %%
run.evaluate()

# %%
run.plot()

# %%
{name: column[-1] for name, column in run.history.items()}
