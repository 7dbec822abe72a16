# %% [markdown]
# # A language model
#
# Train a small GPT on Python's built-in help texts, in less than a minute on two cores. Nothing is downloaded.

# %%
import tercet

run = tercet.train(
    "demo",
    out="runs/notebook-language",
    changes={"training.max_steps": 60, "training.validate_every": 20, "training.save_every": 60},
)
run

# %% [markdown]
# Generate text. After such a short training, the text looks like words at best; `tercet.More(500)` trains for 500 more
# steps.

# %%
run.completions("The ", temperature=0.8, max_new_tokens=40)[0][0]

# %%
for piece in run.stream("A function ", temperature=0.8, max_new_tokens=40):
    print(piece, end="")

# %% [markdown]
# Evaluate the model on held-out text, and look at the metrics of the training.

# %%
run.evaluate()

# %%
run.plot()

# %%
{name: column[-1] for name, column in run.history.items()}
