"""Deploy Tercet's server with Ray Serve, with any number of replicas on any number of machines.

    TERCET_RUNS=runs/mine:runs/bert serve run examples.ray_serve:app

Each replica loads the models once and batches its requests. Ray distributes the requests and replaces a replica that
hangs. A replica that shuts down gets no new requests, and has the maximum duration of a request to finish its own.
Requests must send the key in TERCET_API_KEY. Without a key only local host names are allowed, as in `tercet serve`.
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
    """Return the application. Each replica builds it, because models and their threads cannot be pickled."""
    folders = name_models(os.environ["TERCET_RUNS"].split(os.pathsep))
    key = os.environ.get("TERCET_API_KEY")
    models = (LoadedModel(load(path).trained_model, name=name, limits=Limits()) for name, path in folders.items())
    names = AllowedNames(hosts=() if key is None else ("*",))
    return application(ModelRegistry(models), AccessRules(key=key, names=names))


# More than the batch slots of a replica, so that its batches are full; the other requests wait in its queue.
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
        """Raise if a model hangs. Ray replaces the replica after three failures or timeouts in a row."""
        if not self.app.state.service.registry.is_alive:
            raise RuntimeError("a model hangs")


app = Tercet.bind()
