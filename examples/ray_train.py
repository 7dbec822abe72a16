"""Tercet's training under Ray Train: each of Ray's workers is a rank, on as many machines as Ray has.

    python examples/ray_train.py RECIPE runs/mine --workers 4 --gpu

The run's folder and the recipe's data must be in a file system that all machines see. Where a worker is lost, Ray
starts all of them anew, `--retries` times, and the run goes on from its last whole checkpoint.
"""

import argparse
import os

from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer


def train_rank(settings: dict[str, str]) -> None:
    """What each worker runs. Ray has set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT,
    as torchrun does; the other two of torchrun's are what tells Tercet and Lightning to go by them."""
    context = get_context()
    os.environ["TORCHELASTIC_RUN_ID"] = context.get_experiment_name()
    os.environ["GROUP_RANK"] = str(context.get_node_rank())
    os.chdir(settings["folder"])  # for Ray's workers have one of their own

    import tercet  # here, where it is known which rank this is

    tercet.train(settings["recipe"], out=settings["out"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train as a recipe says, under Ray Train.")
    parser.add_argument("recipe", help="a packaged recipe's name or a .yaml")
    parser.add_argument("out", help="the run's folder")
    parser.add_argument("--workers", type=int, default=2, help="ranks")
    parser.add_argument("--gpu", action="store_true", help="one GPU for each; otherwise one core")
    parser.add_argument("--retries", type=int, default=0, help="how often to go on where a worker is lost")
    args = parser.parse_args()
    TorchTrainer(
        train_rank,
        train_loop_config={"recipe": args.recipe, "out": args.out, "folder": os.getcwd()},
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.gpu),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=args.retries)),
    ).fit()


if __name__ == "__main__":
    main()
