"""Request schemas: OpenAI's fields with their meanings, and additional fields.

Unsupported fields are rejected, not ignored: a client that sets `frequency_penalty: 1` would otherwise assume that it
was applied. Their neutral values are accepted, because some clients always send them.
"""

import json
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
from tercet.nn.specs import Pooling
from tercet.spec import (
    Context,
    LengthPenaltyPower,
    Overlap,
    RepetitionPenalty,
    Share,
    ShareAboveZero,
    Temperature,
    TopK,
)

MAX_GENERATED_TEXTS = 128  # generated texts per request
MAX_INPUT_TEXTS = 2048  # input texts per request
MAX_QUERIES = 128  # queries of a search
MAX_RESULTS = 1000  # results per query
MAX_STOPS = 32  # OpenAI's API accepts 4; tasks of lm-eval have more
MAX_LOGPROBS = 20


def describe_choices(description: str) -> WrapValidator:
    """Return a validator for a field with several types: its error message is "must be" and the description.

    Without it, an invalid value would cause one error message per type.
    """

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
    describe_choices("0 or omitted, since it is not supported; see repetition_penalty"),
]
TopCount = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]


def to_list(value: "str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]") -> list[Any]:
    """Return a list of texts or of lists of token ids; a single text or list of ids becomes a list of one."""
    return [value] if isinstance(value, str) or isinstance(value[0], int) else list(value)


def example(**fields: Any) -> ConfigDict:
    """Return a pydantic configuration with an example request for the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class RequestBody(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Annotated[
        str | None, Field(description="name of the model; optional if only one model supports the route")
    ] = None
    user: Annotated[str | None, Field(description="accepted and ignored")] = None

    @model_validator(mode="before")
    @classmethod
    def refuse_unknown_fields(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and (unknown := [str(name) for name in data if name not in cls.model_fields]):
            field = unknown[0][:100]
            names = {"field": field, "hint": suggest(field, cls.model_fields)}
            raise PydanticCustomError("unknown_field", "unknown field '{field}'{hint}", names)
        return data


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


Schema = Annotated[dict[str, Any] | bool, describe_choices("a JSON schema, which is an object or a boolean")]


class NamedSchema(BaseModel):
    """OpenAI's form of a JSON schema; only the schema itself has an effect."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    content: Annotated[Schema, Field(alias="schema")]


class OutputFormat(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Annotated[Literal["text", "json_object", "json_schema"], describe_choices("text, json_object or json_schema")]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def check_schema(self) -> "OutputFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("schema", "must have the field json_schema if its type is json_schema, only then")
        return self


class StructuredOutputs(BaseModel):
    """vLLM's form: a JSON schema or a regex."""

    model_config = ConfigDict(extra="forbid", strict=True)

    schema_or_text: Annotated[
        Annotated[Schema | str, describe_choices("a JSON schema or its text")] | None, Field(alias="json")
    ] = None
    regex: str | None = None

    @model_validator(mode="after")
    def check_one(self) -> "StructuredOutputs":
        if (self.schema_or_text is None) == (self.regex is None):
            raise PydanticCustomError("one", "must have one of the fields json and regex")
        return self


class SamplingRequest(RequestBody):
    """Sampling settings and stop conditions."""

    temperature: Annotated[
        Temperature | None, Field(description="sampling temperature; 0 selects the most likely token")
    ] = None
    top_p: ShareAboveZero | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Annotated[
        Annotated[int, Field(ge=0, lt=1 << 62)] | None,
        Field(description="seed of the first sample, incremented for each further one; random if omitted"),
    ] = None
    n: Annotated[
        Annotated[int, Field(ge=1, le=MAX_GENERATED_TEXTS)] | None, Field(description="samples per prompt")
    ] = None
    stop: Annotated[Stop, Field(description="stop strings, which end the text and are not part of it")] = None
    stream: Annotated[bool | None, Field(description="send the text while it is generated, as server-sent events")] = (
        None
    )
    stream_options: StreamOptions | None = None
    response_format: Annotated[
        OutputFormat | None, Field(description="make the text JSON: any object, or a value that a JSON schema accepts")
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, Field(description="make the text match a JSON schema (json) or a regular expression")
    ] = None
    frequency_penalty: NeutralPenalty = None
    presence_penalty: NeutralPenalty = None
    logit_bias: Annotated[
        Annotated[dict[str, float], Field(max_length=0)] | None,
        describe_choices("empty or omitted, since biases are not supported"),
    ] = None

    @property
    def samples(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def output_schema(self) -> str | None:
        """The text of the JSON schema of the output, or None."""
        if self.response_format is not None and self.response_format.type != "text":
            named = self.response_format.json_schema
            return json.dumps({"type": "object"} if named is None else named.content)
        schema = self.structured_outputs and self.structured_outputs.schema_or_text
        return schema if schema is None or isinstance(schema, str) else json.dumps(schema)

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(SamplingRequest):
    """Continue one or several texts."""

    model_config = example(prompt="Once upon a time", max_tokens=5, temperature=0.8)

    prompt: TextOrIds
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[
        TopCount | None, Field(description="return log-probabilities, with this number of likeliest tokens per token")
    ] = None
    echo: Annotated[bool | None, Field(description="return the prompt before the completion")] = None
    best_of: Annotated[
        Literal[1] | None,
        describe_choices("1 or omitted, since it is not supported; request n samples and rank them by logprobs"),
    ] = None
    suffix: Annotated[None, describe_choices("omitted, since a language model does not see text after a gap")] = None


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


class LongTextRequest(RequestBody):
    """Settings of texts that exceed the maximum length of the model: they are read in overlapping chunks, or cut."""

    truncate: Annotated[
        bool | None,
        Field(description="cut long texts to the maximum length of the model instead of reading them in chunks"),
    ] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Field(ge=-1)] | None,
        Field(description="cut texts to this number of tokens, including bos and eos; -1: as with truncate"),
    ] = None
    chunk: Annotated[
        Context | None,
        Field(description="maximum tokens of a chunk, including bos and eos (default: the maximum length)"),
    ] = None
    overlap: Annotated[
        Overlap | None,
        Field(description="maximum tokens that a chunk shares with the one before it (default: an eighth of a chunk)"),
    ] = None


class EmbeddingsRequest(LongTextRequest):
    """Return a vector for each text. That of a long text is the mean of the vectors of its overlapping chunks."""

    model_config = example(input=["one text", "another"])

    input: TextOrIds
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[
        int | None,
        Field(
            ge=1,
            description="size of the vectors: that of the model, or one of the smaller sizes that it was trained for",
        ),
    ] = None
    pooling: Annotated[
        Pooling | None,
        Field(description="pooling of the token vectors; default: that of the model"),
    ] = None
    normalize: Annotated[bool, Field(description="scale vectors to length 1")] = True


class SearchRequest(LongTextRequest):
    """Return the documents of the server, or chunks of them, that are most similar to a query."""

    model_config = example(query="how do I undo a commit?", top=3)

    query: Annotated[
        str | Annotated[list[str], Field(min_length=1, max_length=MAX_QUERIES)],
        describe_choices(f"a text or a list of 1 to {MAX_QUERIES} texts"),
    ]
    top: Annotated[int, Field(ge=1, le=MAX_RESULTS, description="results per query")] = 5
    return_documents: Annotated[bool, Field(description="return the text of each result")] = True


class TranslateRequest(RequestBody):
    """Translate one or several texts, as `tercet translate` does; by default with a beam of 5."""

    model_config = example(text="A dog runs.", beam=5)

    text: Texts
    prefix: Annotated[str, Field(description="beginning of each translation")] = ""
    beam: Annotated[int, Field(ge=1, le=64)] | None = None
    n_best: Annotated[int, Field(ge=1, le=64)] | None = None
    length_penalty: Literal["average", "gnmt", "none"] | None = None
    alpha: LengthPenaltyPower | None = None
    sample: Annotated[bool, Field(description="sample a translation instead of searching for the best one")] = False
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: ShareAboveZero | None = None
    min_p: Share | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 62)] | None = None


class FillRequest(RequestBody):
    """Fill the [MASK] tokens of one or several texts."""

    model_config = example(text="The [MASK] sat.", top=3)

    text: Texts
    top: Annotated[
        Annotated[int, Field(ge=1, le=1000)] | None, Field(description="maximum number of candidates per mask")
    ] = None
    only: Annotated[
        Annotated[list[str], Field(min_length=1, max_length=1000)] | None,
        Field(description="restrict candidates to these words"),
    ] = None


class ClassifyRequest(LongTextRequest):
    """Classify one or several texts, or pairs of texts.

    The result is one label per text or per word, several labels per text, or a number, depending on the model. That of
    a long text is the mean over its overlapping chunks. Pairs of texts, and texts whose words are labeled, are cut.
    """

    model_config = example(text="A dog runs.")

    text: Texts
    text_pair: Annotated[
        Texts | None, Field(description="second text of each text, for a model that was trained on pairs of texts")
    ] = None
    threshold: Annotated[
        Share | None,
        Field(description="probability above which a label is returned, if a text may have several (default: 0.5)"),
    ] = None


class RerankRequest(LongTextRequest):
    """Sort documents by their relevance to a query: by a reranker, as `tercet classify --query` does, or by vectors.

    A reranker reads each document together with the query, and cuts long ones. A model of text vectors reads them in
    chunks.
    """

    model_config = example(query="how do I undo a commit?", documents=["git reset", "git clone"], top_n=1)

    query: str
    documents: ManyTexts
    top_n: Annotated[
        Annotated[int, Field(ge=1)] | None, Field(description="maximum number of results (default: all documents)")
    ] = None
    return_documents: Annotated[bool, Field(description="return the text of each document")] = True
