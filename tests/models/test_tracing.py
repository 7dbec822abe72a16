"""Training, prefill and decode steps each trace as one graph: no Python value is read from a tensor."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "traced",
    [
        ("translator:rotary",),
        pytest.param(
            (
                "decoder:rotary",
                "decoder:learned",
                "decoder:alibi",
                "decoder:relative_bias",
                "encoder:rotary",
                "encoder:learned",
            ),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            ("translator:sinusoidal", "translator:alibi", "translator:relative_bias"), marks=pytest.mark.exhaustive
        ),
    ],
)
def test_each_pass_traces_once_as_one_graph(traced: tuple[str, ...]) -> None:
    command = [sys.executable, Path(__file__).with_name("traced.py"), *traced]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("whole", "rotary", "softcap, padded vocabulary, bias", "masked"), marks=pytest.mark.exhaustive),
        pytest.param(("whole",), marks=pytest.mark.exhaustive),
        pytest.param(("chunks",), marks=pytest.mark.exhaustive),
        pytest.param(("shapes",), marks=pytest.mark.exhaustive),
    ],
    ids=lambda arguments: "-".join(arguments)[:20],
)
def test_embedding_to_loss_is_one_graph(arguments: tuple[str, ...]) -> None:
    """Embedding, blocks and loss are one graph in every form of the likelihood; "shapes" varies the sizes."""
    command = [sys.executable, Path(__file__).with_name("traced_losses.py"), *arguments]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "layouts",
    [("few",), pytest.param(("many", "falling"), marks=pytest.mark.exhaustive)],
    ids=lambda layouts: "-".join(layouts),
)
def test_documents_need_no_element_per_pair_of_tokens(layouts: tuple[str, ...]) -> None:
    command = [sys.executable, Path(__file__).with_name("traced_documents.py"), *layouts]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
