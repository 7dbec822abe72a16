"""Request schemas: OpenAI's fields with their meanings, and our own beside them.

A field that Tercet has no answer for is refused, not ignored: who sets `frequency_penalty: 1` would take what comes for
something else. Its neutral value is understood, because clients send it unasked.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tercet.config import suggest
from tercet.spec import LengthPenaltyPower, RepetitionPenalty, Share, ShareAboveZero, Temperature, TopK

MAX_GENERATED_TEXTS = 128  # texts that one request may have written
MAX_INPUT_TEXTS = 2048  # texts that one request may have read
MAX_STOPS = 4
MAX_LOGPROBS = 20


def describe_choices(description: str) -> WrapValidator:
    """Of a field that may be one of several things: say what, and not why it is none of them."""

    def check(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
        try:
            return inner(value)
        except ValidationError:
            raise PydanticCustomError("none_of_these", "must be {what}", {"what": description}) from None

    return WrapValidator(check)


Id = Annotated[int, Field(ge=0, lt=1 << 32)]
Ids = Annotated[list[Id], Field(min_length=1)]
ManyTexts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUT_TEXTS)]
TextOrIds = Annotated[
    str | ManyTexts | Ids | Annotated[list[Ids], Field(min_length=1, max_length=MAX_INPUT_TEXTS)],
    describe_choices(f"a text, a list of 1 to {MAX_INPUT_TEXTS:,} texts, a list of token ids, or a list of such lists"),
]
Texts = Annotated[str | ManyTexts, describe_choices(f"a text or a list of 1 to {MAX_INPUT_TEXTS:,} texts")]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Stop = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None,
    describe_choices(f"a text or a list of up to {MAX_STOPS} texts, of 1 to 200 characters each"),
]
NeutralPenalty = Annotated[
    Annotated[float, Field(ge=0, le=0)] | None,
    describe_choices("0 or left out: tokens are drawn without it; see repetition_penalty"),
]
TopCount = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]


def to_list(value: "str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]") -> list[Any]:
    """The texts, or the lists of ids, of which one alone may come without a list around it."""
    return [value] if isinstance(value, str) or isinstance(value[0], int) else list(value)


def example(**fields: Any) -> ConfigDict:
    """A request that shows how it is done, in the OpenAPI page."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class RequestBody(BaseModel):
    """A request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Annotated[str | None, Field(description="which one; may be left out where only one could answer")] = None
    user: Annotated[str | None, Field(description="understood and not used")] = None

    @model_validator(mode="before")
    @classmethod
    def refuse_unknown_fields(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and (unknown := [str(name) for name in data if name not in cls.model_fields]):
            field = unknown[0][:100]
            names = {"field": field, "hint": suggest(field, cls.model_fields)}
            raise PydanticCustomError("unknown_field", "the request has an unknown field '{field}'{hint}", names)
        return data


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class SamplingRequest(RequestBody):
    """How tokens are sampled, and when to stop."""

    temperature: Annotated[Temperature | None, Field(description="0 takes the likeliest token")] = None
    top_p: ShareAboveZero | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Annotated[
        Annotated[int, Field(ge=0, lt=1 << 62)] | None,
        Field(description="of the first sample, the next ones count up; a fresh one where it is left out"),
    ] = None
    n: Annotated[
        Annotated[int, Field(ge=1, le=MAX_GENERATED_TEXTS)] | None, Field(description="samples of each prompt")
    ] = None
    stop: Annotated[Stop, Field(description="texts that end the answer and are cut off it")] = None
    stream: Annotated[bool | None, Field(description="send the text as it is written, as server-sent events")] = None
    stream_options: StreamOptions | None = None
    frequency_penalty: NeutralPenalty = None
    presence_penalty: NeutralPenalty = None
    logit_bias: Annotated[
        Annotated[dict[str, float], Field(max_length=0)] | None,
        describe_choices("empty or left out: no token is given a bias"),
    ] = None

    @property
    def samples(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(SamplingRequest):
    """Continue a text, or each of several."""

    model_config = example(prompt="Once upon a time", max_tokens=5, temperature=0.8)

    prompt: TextOrIds
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[TopCount | None, Field(description="with so many of the likeliest tokens beside each")] = None
    echo: Annotated[bool | None, Field(description="the prompt before the answer")] = None
    best_of: Annotated[
        Literal[1] | None, describe_choices("1 or left out: ask for n samples, and rank them by logprobs")
    ] = None
    suffix: Annotated[
        None, describe_choices("left out: a language model writes onwards, and sees nothing behind the gap")
    ] = None


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: Annotated[str, StringConstraints(min_length=1, max_length=50)]
    content: Annotated[str | list[TextPart], describe_choices('a text, or a list of {"type": "text", "text": ...}')]
    name: str | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(SamplingRequest):
    """Answer the last message of a conversation."""

    model_config = example(messages=[{"role": "user", "content": "Hello"}], max_tokens=5)

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopCount | None = None


class EmbeddingsRequest(RequestBody):
    """A vector for each text."""

    model_config = example(input=["one text", "another"])

    input: TextOrIds
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int | None, Field(ge=1, description="the model's own width alone is understood")] = None
    pooling: Annotated[
        Literal["mean", "first"] | None,
        Field(description="of the tokens' vectors; by default as the model's folder says"),
    ] = None
    normalise: Annotated[bool, Field(description="to length 1")] = True


class TranslateRequest(RequestBody):
    """Translate a text, or each of several; as `tercet translate`, a beam of 5 unless something else is asked for."""

    model_config = example(text="A dog runs.", beam=5)

    text: Texts
    prefix: Annotated[str, Field(description="how every translation begins")] = ""
    beam: Annotated[int, Field(ge=1, le=64)] | None = None
    n_best: Annotated[int, Field(ge=1, le=64)] | None = None
    length_penalty: Literal["average", "gnmt", "none"] | None = None
    alpha: LengthPenaltyPower | None = None
    sample: Annotated[bool, Field(description="draw a translation instead of searching for the best")] = False
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: ShareAboveZero | None = None
    min_p: Share | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 62)] | None = None


class FillRequest(RequestBody):
    """What may stand where a text has [MASK], or each of several texts."""

    model_config = example(text="The [MASK] sat.", top=3)

    text: Texts
    top: Annotated[Annotated[int, Field(ge=1, le=1000)] | None, Field(description="at most so many for each mask")] = (
        None
    )
    only: Annotated[
        Annotated[list[str], Field(min_length=1, max_length=1000)] | None, Field(description="choose among these words")
    ] = None


class ClassifyRequest(RequestBody):
    """The label of a text, or of each of several; of a model that labels words, that of each word. A model that gives
    texts several labels answers with these, and one that gives numbers with a number."""

    model_config = example(text="A dog runs.")

    text: Texts
    threshold: Annotated[
        Share | None,
        Field(description="of a model that gives texts several labels: those with a probability above it (0.5)"),
    ] = None
