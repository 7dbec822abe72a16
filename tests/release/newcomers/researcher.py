"""A researcher with his own attention, positions and optimizer: check, train, resume after a kill, compare, export."""

import hashlib
import shutil
from pathlib import Path

from newcomers.desk import Desk

PARTS = Path(__file__).with_name("lab")
OWN = (
    "--set model.stack.attention=lab.scalable:Scalable --set model.stack.position=lab.kerple:Kerple "
    "--set 'training.optimizer={kind: \"lab.cautious:Cautious\", lr: 0.003}' --allow-code lab"
)
STEPS = 300
EXPORTS = """\
tercet convert runs/whole whole-hf --to hf --allow-code lab
tercet convert runs/whole whole-ctranslate2 --to ctranslate2 --allow-code lab
tercet convert runs/whole whole-gguf --to gguf --allow-code lab
tercet convert runs/whole whole-onnx --to onnx --allow-code lab"""
PROJECT = """[project]
name = "lab"
version = "0.1"
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[tool.setuptools]
packages = ["lab"]
"""


def write_files(folder: Path) -> None:
    shutil.copytree(PARTS, folder / "project" / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "project" / "pyproject.toml").write_text(PROJECT)


def work(desk: Desk) -> None:
    desk.type("""
        pip install 'tercet[export]'
        pip install -e project
        tercet doctor --check-part lab.scalable:Scalable --allow-code lab
        tercet doctor --check-part lab.kerple:Kerple --allow-code lab
    """)
    train = f"tercet train demo --set training.max_steps={STEPS} --set training.validate_every=50 {OWN} --out"
    if desk.steps is not None:
        train = train.replace("every=50", "every=2").replace(" --out", " --set training.save_every=2 --out")
    desk.type(f"{train} runs/whole")
    desk.kill(f"{train} runs/killed", when=lambda: n_checkpoints(desk.folder / "runs/killed") > 1)
    desk.type(f"{train} runs/killed")
    with desk.check("the killed run has the weights of the uninterrupted one"):
        hashes = [hash_of(desk.folder / "runs" / run / "last/model.safetensors") for run in ("whole", "killed")]
        assert hashes[0] == hashes[1]
    desk.type("""
        tercet evaluate runs/whole --allow-code lab --json > scores.json
        tercet generate runs/whole --allow-code lab --prompt "The "
        tercet inspect runs/whole --allow-code lab
        tercet plot runs/whole loss
        tercet compare demo --vary model.stack.attention=null,lab.scalable:Scalable \\
            --vary model.stack.position=rotary,lab.kerple:Kerple --seeds 1,2 --set training.max_steps=100 \\
            --set training.validate_every=20 --allow-code lab --out compared --json > compared.json
    """)
    desk.check_counts("scores.json")
    with desk.check("four variants are compared, with a picture"):
        assert len(desk.read("compared.json")["rows"]) == 4
        assert (desk.folder / "compared/comparison.png").read_bytes()[:4] == b"\x89PNG"
        assert (desk.folder / "runs/whole/plots/loss.png").exists()
    export(desk)


def export(desk: Desk) -> None:
    """Try all formats: the own attention is rejected with its name, and the model with only the scheme is a graph."""
    for line in EXPORTS.splitlines():
        message = desk.type(f"{line} 2>&1 || test $? -eq 2")
        with desk.check(f"it is rejected with the name of a part: {message.strip()[:150]}"):
            assert "lab." in message
    assert not [*desk.folder.glob("whole-*")]
    desk.type("""
        tercet train demo --set model.stack.position=lab.kerple:Kerple --allow-code lab --set training.max_steps=60 \\
            --out runs/scheme
        tercet convert runs/scheme scheme-onnx --to onnx --allow-code lab
    """)
    with desk.check("the model with only the scheme is a graph"):
        assert (desk.folder / "scheme-onnx/model.onnx").stat().st_size > 10_000


def n_checkpoints(run: Path) -> int:
    return sum(path.is_dir() for path in run.glob("checkpoints/*"))


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
