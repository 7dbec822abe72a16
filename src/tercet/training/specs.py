"""How to train, as settings that all tasks share; what belongs to one of them is in `training/tasks/specs.py`."""

from dataclasses import dataclass, field
from typing import Literal

from tercet.config import check_at_least
from tercet.training.optimizers import Muon, OptimizerSpec
from tercet.training.schedules import WSD, InverseSquareRoot, Noam, Schedule


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """How to train.

    Args:
        max_steps, max_epochs, max_hours: the length of the run; exactly one of them. Hours become steps when the run
            begins, by the speed that is measured then.
        batch_ramp: the share of the run's steps over which a batch grows, from one micro-batch on each device on;
            null for none.
        label_smoothing: the share of each target that is spread over the whole vocabulary; never in validation.
        ema: validate and export a moving average of the weights with this decay, such as 0.999; null for none.
        seed: of weights, data order and dropout.
        warmup_steps: over which the learning rate rises from near zero.
        clip_norm: the gradient's largest norm; null for none.
        precision: bf16 and fp16 keep the weights in fp32 (mixed).
        compile: auto measures, and keeps the faster.
        validate_every, save_every, log_every: in steps.
        keep: of the checkpoints to go on from, the newest so many.
        patience: stop after so many validations without a better one; null for never.
        accelerator, devices, nodes, strategy: where to run; auto takes a GPU if there is one.
    """

    max_steps: int | None = None
    max_epochs: int | None = None
    max_hours: float | None = None
    batch_ramp: float | None = None
    label_smoothing: float = 0.0
    ema: float | None = None
    seed: int = 1
    optimizer: OptimizerSpec = field(default_factory=Muon)
    schedule: Schedule = field(default_factory=WSD)
    warmup_steps: int = 0
    clip_norm: float | None = 1.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: Literal["auto", "always", "never"] = "auto"
    validate_every: int = 250
    save_every: int = 250
    log_every: int = 10
    keep: int = 2
    patience: int | None = None
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"

    def __post_init__(self) -> None:
        if [self.max_steps, self.max_epochs, self.max_hours].count(None) != 2:
            raise ValueError("set exactly one of max_steps, max_epochs and max_hours; null takes another back")
        check_at_least(
            self, 1, "max_steps", "max_epochs", "validate_every", "save_every", "log_every", "keep", "patience",
            "devices", "nodes",
        )  # fmt: skip
        check_at_least(self, 0, "seed", "warmup_steps")
        if self.max_hours is not None and self.max_hours <= 0:
            raise ValueError(f"max_hours={self.max_hours} must be positive")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"clip_norm={self.clip_norm} must be positive; null for none")
        if self.batch_ramp is not None and not 0 < self.batch_ramp <= 1:
            raise ValueError(f"batch_ramp={self.batch_ramp} is a share of the run: above 0, at most 1; null for none")
        if isinstance(self.schedule, Noam | InverseSquareRoot) and not self.warmup_steps:
            raise ValueError(f"the {self.schedule.kind} schedule needs warmup_steps, such as 4000")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be at least 0 and below 1")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema={self.ema} must be between 0 and 1, such as 0.999; null for none")
        if self.strategy == "fsdp" and self.ema is not None:
            raise ValueError("with fsdp no device has the whole model: ema needs another strategy")

    @property
    def world_size(self) -> int:
        """Devices over all nodes."""
        return self.devices * self.nodes


@dataclass(frozen=True, kw_only=True)
class LoggingSpec:
    """Where figures go besides `metrics.csv`. `wandb: offline` needs no account; `wandb sync` sends it later."""

    tensorboard: bool = False
    wandb: Literal["none", "offline", "online"] = "none"
    wandb_project: str = "tercet"
