"""Train with Ray Train. Each worker is a rank, on any number of machines.

    python examples/ray_train.py RECIPE runs/mine --workers 4 --gpu

The run folder and the recipe's data must be on a file system that all machines share. If a worker is lost, Ray restarts
all of them, up to `--retries` times, and the run resumes from its last complete checkpoint.
"""

import argparse
import os

from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer


def train_rank(settings: dict[str, str]) -> None:
    """Train on one worker.

    Ray sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does. Tercet and
    Lightning only use them if torchrun's other two variables are set too.
    """
    context = get_context()
    os.environ["TORCHELASTIC_RUN_ID"] = context.get_experiment_name()
    os.environ["GROUP_RANK"] = str(context.get_node_rank())
    os.chdir(settings["folder"])  # Ray starts workers in another folder

    import tercet  # after the variables of the rank are set

    tercet.train(settings["recipe"], out=settings["out"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a recipe with Ray Train.")
    parser.add_argument("recipe", help="name of a packaged recipe, or a .yaml file")
    parser.add_argument("out", help="run folder")
    parser.add_argument("--workers", type=int, default=2, help="number of ranks (default: 2)")
    parser.add_argument("--gpu", action="store_true", help="use one GPU per rank instead of one core")
    parser.add_argument("--retries", type=int, default=0, help="maximum restarts after lost workers (default: 0)")
    args = parser.parse_args()
    TorchTrainer(
        train_rank,
        train_loop_config={"recipe": args.recipe, "out": args.out, "folder": os.getcwd()},
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.gpu),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=args.retries)),
    ).fit()


if __name__ == "__main__":
    main()
