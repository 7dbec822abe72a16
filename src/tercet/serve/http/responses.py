"""Response schemas: OpenAI's shapes, and for our own routes the fields of `tercet VERB --json`."""

from typing import Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length"]


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class PromptUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tercet"
    kind: str
    context: int
    parameters: int
    routes: list[str]
    folder: str | None


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class CompletionLogprobs(BaseModel):
    """Of each token, in parallel lists; of the first token of an echoed prompt there is no probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionDelta(BaseModel):
    """What is new in one text of a completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    seed: int


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    seed: int


class CompletionResponse(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    """A token as text, its natural log-probability, and the likeliest in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]


class MessageDelta(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str = ""


class ChatDelta(BaseModel):
    """What is new in one answer of a conversation."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    seed: int = 0


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    seed: int


class ChatResponse(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class EmbeddingItem(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: PromptUsage


class TranslationChoice(BaseModel):
    """A translation; of a text of several lines score, logprob and tokens are the sums over them."""

    text: str
    score: float
    logprob: float
    tokens: int
    finish: Literal["eos", "length"]


class TranslatedText(BaseModel):
    """The translations of one text, best first."""

    source: str
    translations: list[TranslationChoice]
    truncated: bool


class TranslateResponse(BaseModel):
    model: str
    answers: list[TranslatedText]


class MaskCandidate(BaseModel):
    word: str
    ids: list[int]
    probability: float
    text: str


class FilledText(BaseModel):
    """For each mask of a text what may stand there, likeliest first."""

    text: str
    masks: list[list[MaskCandidate]]
    truncated: bool


class FillResponse(BaseModel):
    model: str
    answers: list[FilledText]


class ClassifiedText(BaseModel):
    label: str
    probability: float
    scores: dict[str, float]
    text: str
    truncated: bool


class MultiLabelledText(BaseModel):
    """Of a model that gives texts several labels: those above the threshold, and the probability of every label."""

    labels: dict[str, float]
    scores: dict[str, float]
    text: str
    truncated: bool


class RegressedText(BaseModel):
    """Of a model that gives texts numbers, in the unit of those that it learnt from."""

    value: float
    text: str
    truncated: bool


class TaggedWord(BaseModel):
    """A word; without a label where it stands behind what the model takes."""

    word: str
    label: str | None
    probability: float | None
    scores: dict[str, float] | None


class TaggedText(BaseModel):
    text: str
    words: list[TaggedWord]
    truncated: bool


class ClassifyResponse(BaseModel):
    model: str
    answers: list[ClassifiedText] | list[MultiLabelledText] | list[RegressedText] | list[TaggedText]


class HealthResponse(BaseModel):
    status: Literal["alive", "stalled"]


class ReadyResponse(BaseModel):
    status: Literal["ready", "closing"]
    models: int
