"""Tercet's service as a deployment of Ray Serve: as many replicas as are wanted, on as many machines as there are.

    TERCET_RUNS=runs/mine:runs/bert serve run examples.ray_serve:app

Each replica loads the models once and batches what it is given; Ray shares the requests out, and replaces a replica
that hangs. One that goes is sent no more, and has the time that a request may take to finish what it has.
TERCET_API_KEY is the key that requests must bring. Without one only this machine's names are answered, as with
`tercet serve`.
"""

import os

from fastapi import FastAPI
from ray import serve

from tercet import load
from tercet.serve.engine import Limits
from tercet.serve.http.app import application
from tercet.serve.http.guard import AccessRules
from tercet.serve.registry import LoadedModel, ModelRegistry
from tercet.serve.server import name_models
from tercet.web.access import AllowedNames


def service() -> FastAPI:
    """The application, made in each replica: models and their threads cannot be sent from one to another."""
    folders = name_models(os.environ["TERCET_RUNS"].split(os.pathsep))
    key = os.environ.get("TERCET_API_KEY")
    models = (LoadedModel(load(path).trained_model, name=name, limits=Limits()) for name, path in folders.items())
    names = AllowedNames(hosts=() if key is None else ("*",))
    return application(ModelRegistry(models), AccessRules(key=key, names=names))


# More than the slots of a replica may be under way, so that its batches are full; what waits has a line there.
@serve.deployment(
    max_ongoing_requests=100,
    ray_actor_options={"num_cpus": 1},
    graceful_shutdown_timeout_s=Limits().seconds,
    health_check_period_s=10,
    health_check_timeout_s=30,
)
@serve.ingress(service)
class Tercet:
    def check_health(self) -> None:
        """As /health. Ray replaces the replica where this fails or does not return, three times in a row."""
        if not self.app.state.service.registry.is_alive:
            raise RuntimeError("a model hangs")


app = Tercet.bind()
