"""Runs on prepared folders: bitwise identical after a kill, local or remote, in constant memory."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import (
    CHECKPOINT,
    assert_same_run,
    child,
    dies_at_rename,
    exit_code,
    resume_state,
    tiny_masked_recipe,
    tiny_recipe,
)

from tercet.config import UserError, merge
from tercet.data import Documents, TextSpec, prepare_tokens
from tercet.data.rows import layouts, order
from tercet.tokens import BPE, Characters, Tokenizer
from tercet.training import Recipe, train

VALIDATION = Documents(fraction=0.1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return prepared folders of three kinds of text; two of them have the same tokenizer."""
    folder = tmp_path_factory.mktemp("prepared")
    for name, word in (("times", "times"), ("plus", "plus")):
        lines = [json.dumps({"text": f"{n} {word} {m} is {n * m}.\n" * 3}) for n in range(9) for m in range(2, 8)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    texts = [(folder / f"{name}.jsonl").read_text() for name in ("times", "plus")]
    tokenizer = Tokenizer.train(Characters(), texts)
    masked = Tokenizer.train(BPE(vocab_size=300, mask=True, bos=True), texts)
    for name, source, dataset_tokenizer in (
        ("times", "times", tokenizer),
        ("plus", "plus", tokenizer),
        ("mask", "times", masked),
    ):
        spec = TextSpec(source=str(folder / f"{source}.jsonl"), validation=VALIDATION)
        prepare_tokens(spec, folder / f"{name}-tokens", tokenizer=dataset_tokenizer, shard_tokens=512, workers=1)
    return folder


CASES = ["local", "groups", "url", "mixture", "padded", "masked"]


def make_recipe(case: str, folder: Path, **settings: Any) -> Recipe:
    times, plus = folder / "times-tokens", folder / "plus-tokens"
    data: dict[str, dict[str, Any]] = {
        "local": {"source": str(times)},
        "groups": {"source": str(times), "shard_group": 2},
        "url": {"source": f"file://{times}", "shard_group": 2},
        "mixture": {"source": str(times), "mixture": [{"source": f"file://{plus}", "weight": 0.4}]},
        "padded": {"source": str(times), "rows": {"kind": "padded", "side": "right", "stride": 8}, "shard_group": 3},
        "masked": {"source": f"file://{folder / 'mask-tokens'}", "shard_group": 1},
    }
    make = tiny_masked_recipe if case == "masked" else tiny_recipe
    changes = {"data": data[case]}
    if case == "padded":
        changes = merge(changes, {"data": {"tokenizer": {"kind": "characters"}}})
    return make(folder, changes, **settings)


def forget_orders() -> None:
    """Clear the caches of orders, as in a new process."""
    for function in (layouts._group_rows, layouts._group_ends, order._permutation):
        function.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [name if name == "mixture" else pytest.param(name, marks=pytest.mark.exhaustive) for name in CASES],
)
def test_killed_run_equals_uninterrupted_run(folders: Path, tmp_path: Path, case: str) -> None:
    recipe = make_recipe(case, folders)
    train(recipe, tmp_path / "whole", quiet=True)
    out = tmp_path / "run"
    forget_orders()

    def work() -> None:
        dies_at_rename(1, after=True, name=CHECKPOINT)()
        train(recipe, out, quiet=True)

    assert exit_code(child(work)) == -signal.SIGKILL
    assert resume_state(out)["global_step"] == 4
    forget_orders()
    train(recipe, out, quiet=True)
    assert_same_run(tmp_path / "whole", out)


@pytest.mark.slow
def test_url_gives_the_same_run_as_folder(folders: Path, tmp_path: Path) -> None:
    train(make_recipe("groups", folders), tmp_path / "near", quiet=True)
    train(make_recipe("url", folders), tmp_path / "far", quiet=True)
    weights = [(tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("near", "far")]
    assert weights[0] == weights[1]
    train(make_recipe("local", folders), tmp_path / "all", quiet=True)  # another order
    assert (tmp_path / "all" / "last" / "model.safetensors").read_bytes() != weights[0]


@pytest.mark.slow
def test_fine_tuning_requires_the_models_tokenizer(folders: Path, tmp_path: Path) -> None:
    train(make_recipe("local", folders), tmp_path / "run", quiet=True)
    recipe = make_recipe("local", folders)
    other_tokens = folders / "other-tokens"
    spec = TextSpec(source=str(folders / "plus.jsonl"), tokenizer=BPE(vocab_size=300))
    prepare_tokens(spec, other_tokens, shard_tokens=512, workers=1)
    from tercet.training.request import RunRequest, resolve

    path = tmp_path / "recipe.yaml"
    from tercet.settings_yaml import write_yaml

    path.write_text(write_yaml(recipe))
    request = RunRequest(
        recipe=str(path), out=tmp_path / "on", data=str(other_tokens), pretrained=str(tmp_path / "run")
    )
    with pytest.raises(UserError, match="were made with another tokenizer than the model's; prepare the text with"):
        train(resolve(request).recipe, tmp_path / "on", quiet=True)
    same_tokenizer = replace(request, data=str(folders / "plus-tokens"))
    train(resolve(same_tokenizer).recipe, tmp_path / "on", quiet=True)


def test_mixture_of_other_sources_is_rejected(folders: Path, tmp_path: Path) -> None:
    times = str(folders / "times-tokens")
    for data, message in (
        (
            {"source": str(folders / "times.jsonl"), "mixture": [{"source": times, "weight": 0.5}]},
            "mixture requires prep",
        ),
        ({"source": times, "mixture": [{"source": str(folders), "weight": 0.5}]}, "is not a prepared folder"),
        ({"source": times, "mixture": [{"source": str(folders / "mask-tokens"), "weight": 0.5}]}, "another tokenizer"),
    ):
        with pytest.raises(UserError, match=message):
            train(tiny_recipe(tmp_path, {"data": data}), tmp_path / "run", quiet=True)
    for mixture, message in (
        ([{"source": times, "weight": 1.5}], r"data.mixture\[0\].weight=1.5 must be above 0 and below 1"),
        ([{"source": times, "wait": 0.5}], r"data.mixture\[0\]: unknown key 'wait'; did you mean 'weight'"),
        ([{"source": times, "weight": 0.5}] * 2, "weights of mixture sum to 1 and leave nothing for source"),
        ({"source": times}, "data.mixture: expected a list"),
    ):
        with pytest.raises(UserError, match=message):
            tiny_recipe(tmp_path, {"data": {"source": times, "mixture": mixture}})


MEASURE = """
import os, sys
import numpy as np
from tercet.data import PackedRows
from tercet.data.rows.order import Order
from tercet.data.corpora.prepared import open_folder
from tercet.data.rows.sharded_rows import ShardedRows
folder = open_folder(sys.argv[1], group=int(sys.argv[2]) or None)
make = lambda ids, starts: PackedRows(ids, starts, length=1024)
rows = ShardedRows(folder, make, length=1024, has_documents=False, packed=True)
order = Order(len(rows), 64, 1, rows.layout)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before, most = resident(), 0
for step in range(len(rows) // 64):
    rows.fetch_ahead(step * 64 + 63, 1)
    rows.batch(*order.rows(step))
    most = max(most, resident() - before)
print(most)
"""


def big_folder(folder: Path, shards: int) -> Path:
    """Return a prepared folder of random ids with 4 million per shard."""
    from dataclasses import replace

    from tercet.data.corpora.prepared import open_folder
    from tercet.storage import FileHash, Manifest, write_sealed_json

    ids = np.random.default_rng(1).integers(0, 50, 4 << 20, dtype=np.uint16)
    ids.tofile(folder.parent / "ids.bin")
    spec = TextSpec(source=str(folder.parent / "ids.bin"))
    tokenizer = Tokenizer.train(Characters(), ["abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"])
    prepare_tokens(spec, folder, tokenizer=tokenizer, shard_tokens=8 << 20, workers=1)
    contents = open_folder(str(folder)).contents
    (part,) = contents.shards
    copies = [replace(part, name=f"train-{number:05d}") for number in range(shards)]
    files = dict(contents.files.files)
    for copy in copies[1:]:
        for name, old in ((copy.ids_file, part.ids_file), (copy.documents_file, part.documents_file)):
            (folder / name).write_bytes((folder / old).read_bytes())
            files[name] = FileHash.from_path(folder / name)
    manifest = replace(contents, shards=tuple(copies), files=Manifest(files))
    write_sealed_json(folder / "manifest.json", manifest.to_plain())
    return folder


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc/self/statm on this system")
@pytest.mark.parametrize("group", [pytest.param(0, marks=pytest.mark.exhaustive), 2])
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, group: int) -> None:
    growth = list[int]()
    for name, shards in (("small", 3), ("large", 16)):
        folder = big_folder(tmp_path / name, shards)
        command = [sys.executable, "-c", MEASURE, str(folder) if not group else f"file://{folder}", str(group)]
        env = {**os.environ, "TERCET_CACHE": str(tmp_path / "cache")}
        growth.append(int(subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout))
    small, large = growth  # in bytes; the tokens take 25 and 134 MB
    assert large < small + 5e7, growth
    assert large < 8e7, growth
