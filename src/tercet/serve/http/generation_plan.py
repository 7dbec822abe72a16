"""The plan of a request for text: the model, the prompts, the number of samples and their settings."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tercet.generation import Sampling
from tercet.serve.engine import GenerationRequest
from tercet.serve.http.responses import CompletionLogprobs
from tercet.serve.registry import LoadedModel


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt to continue.

    Attributes:
        ids: Token ids.
        echo: Text of the prompt if it is sent before the completion; else empty.
        logprobs: Tokens of the prompt with their log-probabilities if they are sent as well; else None.
    """

    ids: tuple[int, ...]
    echo: str = ""
    logprobs: CompletionLogprobs | None = None


@dataclass(frozen=True, kw_only=True)
class GenerationPlan:
    """The texts to generate for a request.

    Text number i continues prompt i // samples. Sample j of each prompt is drawn with the seed `sampling.seed` + j.

    Attributes:
        model: Model that generates the texts.
        prompts: Prompts to continue.
        sampling: Settings of all texts, with the seed of the first sample.
        samples: Number of texts per prompt.
        top_logprobs: Number of likeliest tokens to report with each token; None if no log-probabilities are sent.
        id: Id of the response.
        created: Time of the request in seconds since 1970.
    """

    model: LoadedModel
    prompts: Sequence[Prompt]
    sampling: Sampling
    samples: int
    top_logprobs: int | None
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def requests(self) -> list[GenerationRequest]:
        """One request to the engine per text, in the order of their numbers."""
        top = min(self.top_logprobs or 0, self.model.trained_model.model.vocab_size)
        return [
            GenerationRequest(
                ids=self.prompt(index).ids, sampling=replace(self.sampling, seed=self.seed(index)), top_logprobs=top
            )
            for index in range(len(self.prompts) * self.samples)
        ]

    def prompt(self, index: int) -> Prompt:
        return self.prompts[index // self.samples]

    def seed(self, index: int) -> int:
        return self.sampling.seed + index % self.samples

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.ids) for prompt in self.prompts)
