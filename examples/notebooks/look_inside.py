# %% [markdown]
# # Look inside a model
#
# Record the tensors of a forward pass by the names of their modules, and change them during the pass. The model here is
# small and trained briefly, so its heads do not show clear patterns.

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
# Switch off one head at a time, and measure how much the logits of the last token change.

# %%
for head in range(4):
    edit = Edit(name="stack.blocks.0.self_attention.heads", heads=(head,))
    without = run.read("The function returns the function", edits=[edit])
    print(head, f"{(reading.logits - without.logits)[-1].abs().max():.3f}")
