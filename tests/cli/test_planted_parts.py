"""`tercet doctor --check-part` finds the faults of tests/planted_parts, and names them.

The parts, except UnsavedBuffer, were written before the checks were read or run on them; benchmarks/log/ci.md has
the result of that first run.
"""

from pathlib import Path

import pytest

from sampled_cases import sampled
from tercet.custom_code import ALLOWED
from tercet.diagnosis import check_part
from tercet.diagnosis.part_checks import PartChecks

FOLDER = Path(__file__).parents[1] / "planted_parts"
FAULTS = {  # the first condition that fails, and words of its message
    "faulty_attention": {
        "SoftmaxOverQueries": ("later tokens change no", "token 0 change if token 6 changes"),
        "MaskAfterSoftmax": ("later tokens change no", "with weight 0 at the others"),
        "OffByOneMask": ("later tokens change no", "`mask` and `causal` allow"),
        "ShiftedKeys": ("cached decoding", "keys and values of a token only from that token"),
        "RotationFromColumns": ("cached decoding", "and `rotation`"),
        "CenteredKeys": ("later tokens change no", "attend only to the keys"),
        "DropoutInEvaluation": ("two passes", "a pass draws random numbers"),
        "BranchOnScores": ("torch.compile", "if largest > 30:"),
    },
    "faulty_position": {
        "RelativeProgress": ("later tokens change no", "change if later tokens are absent"),
        "ColumnPositions": ("cached decoding", "from the argument `positions`, not from columns"),
        "PlainTensorTable": ("all tensors", "self.table of PlainTable is neither a parameter nor a buffer"),
        "SilentBias": ("has_bias", "set has_bias = True"),
        "FixedTable": ("the last positions", "do not clamp positions"),
    },
    "faulty_layers": {
        "BatchStatistics": ("rows are independent", "without means or counts over the length or the batch"),
        "Float32Norm": ("bfloat16 and float64", "WithoutCast returns torch.float32 for an input of torch.float64"),
        "RunningScale": ("two passes", "a pass changes the buffer stack.blocks.0.self_residual.before.scale"),
        "NumpyTanh": ("gradients", "by functions of PyTorch"),
        "DetachedSlope": ("gradients", "activation.slope has no gradient"),
        "NoisySlope": ("two passes", "a pass draws random numbers"),
        "LateParameter": ("all tensors", "the first pass creates the parameter"),
        "UnsavedBuffer": ("a saved model", "the buffer stack.blocks.0.feedforward.shares is not saved"),
        "Neighbors": ("later tokens change no", "compute each token only from itself"),
        "Predecessors": ("cached decoding", "compute each token only from itself"),
        "ContextMean": ("cached decoding", "without means or counts over the length"),
        "ItemGate": ("gradients", ".item() (stack.blocks.0.feedforward.gate has no gradient"),
    },
    "faulty_objective": {
        "MeanOfReal": ("the loss of a target", "without sums, means or counts over the targets"),
        "RareClasses": ("the loss of a target", "without sums, means or counts over the targets"),
        "LogOfSoftmax": ("losses and gradients are finite", "use log_softmax"),
        "RandomNegatives": ("two calls", "a call draws random numbers"),
    },
    "faulty_optimizer": {
        "MomentumOnSelf": ("a resumed run", "steps change self.momentum of the optimizer, which is not saved"),
        "PythonCount": ("a resumed run", "steps change self.count of the optimizer"),
        "DecayOfDefaults": ("weight decay is that of the group", "read group['weight_decay']"),
        "ConstantRate": ("the learning rate of each group", "read group['lr']"),
        "MatricesOnly": ("each trainable weight is in one group", "query.bias is in 0 groups"),
    },
}
PARTS = [f"{module}:{name}" for module, names in FAULTS.items() for name in names]
KEEP = [place for place, part in enumerate(PARTS) if part.startswith(("faulty_objective", "faulty_optimizer"))
        or part.endswith(("ShiftedKeys", "PlainTensorTable", "SilentBias", "DetachedSlope"))]  # fmt: skip
RIGHT = ("GatedAttention", "LogDistance", "PartialRMS", "LearnedSwish", "TwoPaths", "Poly", "Nesterov")
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def allowed_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv(ALLOWED, ",".join(path.stem for path in FOLDER.glob("*.py")))


def failures(result: PartChecks) -> list[tuple[str, str]]:
    return [(check.name, check.problem) for check in result.checks if not check.passed]


@pytest.mark.parametrize("part", sampled(PARTS, keep=KEEP))
def test_check_part_names_the_fault(part: str) -> None:
    module, _, name = part.partition(":")
    condition, words = FAULTS[module][name]
    failed = failures(check_part(part))
    assert failed[0][0].startswith(condition), failed
    assert words in failed[0][1], failed


@pytest.mark.parametrize("name", sampled(RIGHT, keep=(0, 5, 6)))
def test_check_part_accepts_a_right_part(name: str) -> None:
    assert failures(check_part(f"right_parts:{name}")) == []
