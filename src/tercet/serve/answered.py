"""What a client is answered: OpenAI's shapes, and for our own routes the fields of `tercet VERB --json`."""

from typing import Literal

from pydantic import BaseModel


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ReadUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tercet"
    kind: str
    context: int
    parameters: int
    routes: list[str]


class Models(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class Logprobs(BaseModel):
    """Of each token, in parallel lists; of the first token of an echoed prompt there is no probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Choice(BaseModel):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"]
    seed: int


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]


class Said(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: Said
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    seed: int


class Chat(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Vector(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(BaseModel):
    object: Literal["list"] = "list"
    data: list[Vector]
    model: str
    usage: ReadUsage


class OneTranslation(BaseModel):
    text: str
    score: float
    logprob: float
    tokens: int
    finish: Literal["eos", "length"]


class Translated(BaseModel):
    """The translations of one text, best first."""

    source: str
    translations: list[OneTranslation]
    truncated: bool


class Translations(BaseModel):
    model: str
    answers: list[Translated]


class OneCandidate(BaseModel):
    word: str
    ids: list[int]
    probability: float
    text: str


class FilledText(BaseModel):
    """For each mask of a text what may stand there, likeliest first."""

    text: str
    masks: list[list[OneCandidate]]
    truncated: bool


class Fills(BaseModel):
    model: str
    answers: list[FilledText]


class Labelled(BaseModel):
    label: str
    probability: float
    scores: dict[str, float]


class LabelledText(Labelled):
    text: str
    truncated: bool


class LabelledWord(BaseModel):
    """A word; without a label where it stands behind what the model takes."""

    word: str
    label: str | None
    probability: float | None
    scores: dict[str, float] | None


class LabelledWords(BaseModel):
    text: str
    words: list[LabelledWord]
    truncated: bool


class Labels(BaseModel):
    model: str
    answers: list[LabelledText] | list[LabelledWords]


class Health(BaseModel):
    status: Literal["ready", "closing"]
    models: int
