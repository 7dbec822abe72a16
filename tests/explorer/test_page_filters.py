"""The page's filters agree with the sampler's, which are separate implementations of the same functions."""

import contextlib
import json
import math
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.explorer.page_files import page_files
from tercet.generation import Sampling, distribution
from tercet.generation.filters import apply_temperature, keep_min_p, keep_top_k, keep_top_p

NEAR = 1e-6
SOURCE = page_files()["filters.js"]
# Node runs the page's module. It reads one case per line and prints one answer per line.
PROGRAM = """
import readline from "node:readline";
const filters = await import("data:text/javascript," + encodeURIComponent(process.env.FILTERS));
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { logits, sampling } = JSON.parse(line);
  let answer;
  try {
    const ranking = filters.rank(logits.map(Number));
    const made = filters.distribution(ranking, sampling);
    answer = { kept: made.kept, entropy: filters.entropy(made), probabilities: [...filters.byId(ranking, made)] };
  } catch (error) {
    answer = { error: error.message };
  }
  console.log(JSON.stringify(answer));
}
"""
TIMING_PROGRAM = """
const filters = await import("data:text/javascript," + encodeURIComponent(process.env.FILTERS));
let state = 7;
const next = () => ((state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32);
const logits = Float32Array.from({ length: 50257 }, () => 12 * (next() + next() + next()) - 18);
const quickest = (does) => {
  const times = Array.from({ length: 7 }, () => {
    const began = performance.now();
    does();
    return performance.now() - began;
  });
  return Math.min(...times);
};
const ranking = filters.rank(logits);
const settings = { temperature: 0.7, top_k: 40000, top_p: 0.99, min_p: 1e-6 };
const move = quickest(() => filters.distribution(ranking, settings));
console.log(JSON.stringify({ rank: quickest(() => filters.rank(logits)), move }));
"""
FilterFunction = Callable[[list[float], Sampling], dict[str, Any]]


@contextlib.contextmanager
def filters(source: str = SOURCE) -> Generator[FilterFunction]:
    """Yield a function that runs the page's filters in a separate process."""
    with subprocess.Popen(
        node(PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"FILTERS": source}
    ) as process:
        process_input, process_output = process.stdin, process.stdout
        assert process_input is not None
        assert process_output is not None

        def run_filters(logits: list[float], sampling: Sampling) -> dict[str, Any]:
            names = ("temperature", "top_k", "top_p", "min_p")
            texts = [logit if math.isfinite(logit) else str(logit).replace("inf", "Infinity") for logit in logits]
            case = {"logits": texts, "sampling": {name: getattr(sampling, name) for name in names}}
            process_input.write(json.dumps(case) + "\n")
            process_input.flush()
            return json.loads(process_output.readline())

        yield run_filters


def node(program: str) -> list[str]:
    path = shutil.which("node")
    if path is None:
        pytest.skip("node is not installed, which runs the page's filters")
    return [path, "--input-type=module", "--eval", program]


@pytest.fixture(scope="module")
def page() -> Iterator[FilterFunction]:
    with filters() as run_filters:
        yield run_filters


def reference(logits: list[float], sampling: Sampling) -> np.ndarray:
    """Return probabilities by generation/filters.py in float64, as the page computes them."""
    filtered = apply_temperature(torch.tensor([logits], dtype=torch.float32).double(), sampling.temperature)
    if sampling.top_k is not None:
        filtered = keep_top_k(filtered, sampling.top_k)
    if sampling.top_p is not None:
        filtered = keep_top_p(filtered, sampling.top_p)
    if sampling.min_p is not None:
        filtered = keep_min_p(filtered, sampling.min_p)
    return filtered.softmax(-1)[0].numpy()


def assert_agrees(answer: dict[str, Any], expected: np.ndarray) -> None:
    found = np.array(answer["probabilities"])
    assert ((found > 0) == (expected > 0)).all()
    np.testing.assert_allclose(found, expected, rtol=0, atol=NEAR)


def assert_all_agree(page: FilterFunction) -> None:
    for logits, sampling in random_cases(400):
        assert_agrees(page(logits, sampling), reference(logits, sampling))


def random_cases(count: int) -> Iterator[tuple[list[float], Sampling]]:
    """Yield logits for vocabularies of prime sizes. Every third row has integer logits, with many ties."""
    random = np.random.default_rng(5)
    for number in range(count):
        size = int(random.choice([1, 2, 7, 31, 101, 509]))
        logits = random.normal(0, random.choice([0.1, 1, 5, 30]), size).astype(np.float32)
        if number % 3 == 0:
            logits = logits.round()
        pick: Callable[..., Any] = lambda *options: options[random.integers(len(options))]  # noqa: E731
        yield (
            logits.tolist(),
            Sampling(
                temperature=pick(0, 0.01, 0.3, 0.7, 1, 1, 1.4, 2, 50),
                top_k=pick(None, None, 1, 2, 5, size, size + 13),
                top_p=pick(None, None, 1e-9, 0.1, 0.5, 0.9, 0.999, 1),
                min_p=pick(None, None, 0, 1e-6, 0.05, 0.5, 1),
            ),
        )


@pytest.mark.slow
def test_filters_agree_with_the_functions_of_the_sampler(page: FilterFunction) -> None:
    assert_all_agree(page)


@pytest.mark.slow
def test_filters_agree_with_the_sampler(page: FilterFunction) -> None:
    """The sampler uses float32, so a token at the boundary of a filter may differ, but no other."""
    elsewhere = 0
    for logits, sampling in random_cases(400):
        found = np.array(page(logits, sampling)["probabilities"])
        expected = distribution(torch.tensor([logits]), sampling)[0].double().numpy()
        if (np.count_nonzero(found > 1e-30), found.argmax()) != (np.count_nonzero(expected > 1e-30), expected.argmax()):
            elsewhere += 1
            continue
        np.testing.assert_allclose(found, expected, rtol=0, atol=NEAR * 2)
    assert elsewhere <= 2


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    # The logits are multiples of a step, since smaller differences are rounded differently by the two implementations.
    logits=st.lists(st.integers(-3, 3) | st.integers(-2560, 2560).map(lambda n: n / 64), min_size=1, max_size=23),
    temperature=st.sampled_from([0.0, 0.2, 1.0, 3.0]),
    top_k=st.none() | st.integers(1, 29),
    top_p=st.none() | st.sampled_from([0.01, 0.25, 0.5, 0.9, 1.0]),
    min_p=st.none() | st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_filters_agree_on_generated_cases(
    page: FilterFunction,
    logits: list[float],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    answer = page([float(logit) for logit in logits], sampling)
    found = np.array(answer["probabilities"])
    assert answer["kept"] >= 1
    assert found.sum() == pytest.approx(1)
    expected = reference(logits, sampling)
    np.testing.assert_allclose(found, expected, rtol=0, atol=NEAR)
    positive = expected[expected > 0]
    assert answer["entropy"] == pytest.approx(-(positive * np.log2(positive)).sum(), abs=1e-9)


def test_ties_keep_the_lowest_ids(page: FilterFunction) -> None:
    assert page([1.0] * 5, Sampling(top_k=2))["probabilities"] == [0.5, 0.5, 0, 0, 0]
    assert page([0.0, -0.0, 0.0], Sampling(temperature=0))["probabilities"] == [1, 0, 0]


def test_logits_with_nan_are_rejected(page: FilterFunction) -> None:
    for invalid in (math.nan, math.inf):
        assert "training diverged" in page([0.0, invalid], Sampling())["error"]
    assert page([0.0, -math.inf], Sampling())["probabilities"] == [1, 0]  # the model excludes this token


@pytest.mark.parametrize(
    ("original", "fault"),
    [
        ("sum < p * (1 - ROUNDING)", "sum + shareOfNext < p"),
        ("Math.log(p) - ROUNDING +", "Math.log(p) / 2 +"),
        ("subarray(0, Math.max(1, k))", "subarray(0, k + 1)"),
        ("logit / Math.max(temperature, Number.MIN_VALUE)", "logit * temperature"),
        ("falling * MAX_IDS + id", "falling * MAX_IDS + (MAX_IDS - 1 - id)"),
    ],
)
def test_planted_faults_are_detected(original: str, fault: str) -> None:
    assert SOURCE.count(original) == 1
    fault = fault.replace("shareOfNext", "(probabilities[kept] ?? 0)")
    with filters(SOURCE.replace(original, fault)) as faulty, pytest.raises(AssertionError):
        assert_all_agree(faulty)


@pytest.mark.slow
def test_a_large_vocabulary_is_fast() -> None:
    """With 50,257 logits the bars follow a dragged slider within three frames."""
    process = subprocess.run(
        node(TIMING_PROGRAM), capture_output=True, text=True, check=True, env={"FILTERS": SOURCE}, timeout=60
    )
    milliseconds = json.loads(process.stdout)
    assert milliseconds["rank"] < 50
    assert milliseconds["move"] < 50
