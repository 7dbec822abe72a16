# %% [markdown]
# # Classification with scikit-learn
#
# Train a small encoder from scratch to distinguish sentences about money from sentences about weather. Then use it in
# cross-validation and in a pipeline. You need `pip install 'tercet[sklearn]'`.

# %%
from itertools import product

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

from tercet.sklearn import TercetClassifier, TercetVectorizer

money = [f"{who} {what} {n} coins" for who, what, n in product(["she", "he", "the bank"], ["paid", "saved"], range(9))]
weather = [
    f"{when} it {what} for {n} hours" for when, what, n in product(["today", "in May"], ["rained", "snowed"], range(9))
]
texts, labels = money + weather, ["money"] * len(money) + ["weather"] * len(weather)

# %%
model = TercetClassifier(
    random_state=1,
    out="runs/notebook-classifier",
    model__stack__n_layers=1,
    model__stack__d_model=32,
    model__stack__n_heads=2,
    model__max_len=16,
    data__tokenizer={"kind": "words"},
    training__max_epochs=None,
    training__max_steps=40,
    training__warmup_steps=0,
    training__optimizer__lr=0.01,
    training__validate_every=20,
)
model.fit(texts, labels)
model.run_

# %%
model.run_.classify("today the bank saved 3 hours")

# %%
model.set_params(out=None)
cross_val_score(model, texts, labels, cv=2)

# %% [markdown]
# The same encoder as a vectorizer, followed by a classifier of scikit-learn.

# %%
pipeline = make_pipeline(TercetVectorizer("runs/notebook-classifier"), LogisticRegression())
cross_val_score(pipeline, texts, labels, cv=2)
