# %% [markdown]
# # A look inside
#
# Every tensor of a pass has its module's name, and may be changed on the way. The model is a small one that has just
# been trained, so what its heads do is still rough.

# %%
import tercet
from tercet.inspect import Edit
from tercet.plots import plot_attention

run = tercet.train(
    "demo",
    out="runs/notebook-inside",
    changes={"training.max_steps": 40, "training.validate_every": 20, "training.save_every": 40},
)
run.model.spec

# %%
reading = run.read("The function returns the function")
reading

# %%
plot_attention(run.trained_model, "The function returns the function", layer=0)

# %% [markdown]
# One head is switched off: how far do the logits of the last token move?

# %%
for head in range(4):
    edit = Edit(name="stack.blocks.0.self_attention.heads", heads=(head,))
    without = run.read("The function returns the function", edits=[edit])
    print(head, f"{(reading.logits - without.logits)[-1].abs().max():.3f}")
